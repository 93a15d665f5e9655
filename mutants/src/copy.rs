//! A copy of the repository with changed code, and builds of this copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A compiler error: the places in the code that the error names, its error code, and its text.
pub(crate) struct CompilerError {
    pub(crate) spans: Vec<(String, Range<usize>)>,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The programs that cargo has built, by name, and the compiler errors.
pub(crate) type Built = (BTreeMap<String, PathBuf>, Vec<CompilerError>);

/// Copies files of the repository `root` to the folder `copy`. A file with unchanged content is not written, so that
/// cargo does not compile it again.
pub(crate) fn copy_files<'a>(
    root: &Path,
    copy: &Path,
    files: impl Iterator<Item = &'a String>,
) -> Result<()> {
    for file in files {
        write(&copy.join(file), &fs::read(root.join(file))?)?;
    }
    Ok(())
}

/// Runs cargo in a copy of the repository. `build_folder` receives the built files.
pub(crate) fn cargo(copy: &Path, build_folder: &Path, args: &[&str]) -> Result<Built> {
    eprintln!("cargo {}", args.join(" "));
    let output = Command::new("nice")
        .arg("cargo")
        .args(args)
        .args(["--locked", "--message-format=json"])
        .env("CARGO_TARGET_DIR", build_folder)
        .current_dir(copy)
        .stderr(Stdio::piped())
        .output()
        .context("cargo")?;
    let mut programs = BTreeMap::new();
    let mut errors = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if let Some(program) = message["executable"].as_str() {
            let name = message["target"]["name"].as_str().unwrap_or_default();
            programs.insert(name.to_owned(), PathBuf::from(program));
        }
        let diagnostic = &message["message"];
        if diagnostic["level"] == "error"
            && diagnostic["spans"]
                .as_array()
                .is_some_and(|s| !s.is_empty())
        {
            errors.push(compiler_error(diagnostic));
        }
    }
    if errors.is_empty() && !output.status.success() {
        bail!("cargo: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok((programs, errors))
}

fn compiler_error(diagnostic: &Value) -> CompilerError {
    let spans = diagnostic["spans"].as_array().cloned().unwrap_or_default();
    let span_of = |span: &Value| {
        let offset_of = |name: &str| span[name].as_u64().unwrap_or_default() as usize;
        let file = span["file_name"].as_str().unwrap_or_default().to_owned();
        (file, offset_of("byte_start")..offset_of("byte_end"))
    };
    let (primary, others): (Vec<_>, Vec<_>) =
        spans.iter().partition(|span| span["is_primary"] == true);
    CompilerError {
        spans: primary.into_iter().chain(others).map(span_of).collect(),
        code: diagnostic["code"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        message: diagnostic["rendered"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
    }
}

/// Writes a file, unless it has this content.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|current| current == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes).context(path.display().to_string())
}

/// Removes the files of the copy that no longer exist in the original repository. `files` are those that exist.
pub(crate) fn remove_others(copy: &Path, files: &[String]) -> Result<()> {
    remove_others_in(copy, copy, &files.iter().map(PathBuf::from).collect())
}

fn remove_others_in(folder: &Path, copy: &Path, kept_files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others_in(&path, copy, kept_files)?;
        } else if !kept_files.contains(path.strip_prefix(copy)?) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
