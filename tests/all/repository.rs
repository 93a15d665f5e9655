//! Reads the text files of the repository, for the tests that check comments, messages and pages.

use std::path::{Path, PathBuf};

/// Names of folders whose files are not sources of this project.
pub(crate) const FOREIGN_FOLDERS: [&str; 4] = ["target", ".git", "node_modules", ".venv"];

/// The root folder of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository: its path from the root folder, and its whole text.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn is_page(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension == "md")
    }

    /// Returns true if this file contains Rust code.
    pub(crate) fn is_rust(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension == "rs")
    }

    /// The characters that begin a comment line in this file, such as `//`. `None` for a file type whose comments the
    /// tests do not check.
    pub(crate) fn comment(&self) -> Option<&'static str> {
        let extension = self
            .path
            .extension()
            .and_then(|extension| extension.to_str());
        match extension {
            Some("rs") => Some("//"),
            Some("lua") => Some("--"),
            Some("toml" | "yml" | "yaml") => Some("#"),
            None if self.text.starts_with("#!") => Some("#"),
            _ => None,
        }
    }
}

/// All pages of the repository, and all files whose comments the tests check.
pub(crate) fn files() -> Vec<File> {
    let mut files = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let file_name = path.file_name().and_then(|file_name| file_name.to_str());
            if path.is_dir()
                && !file_name.is_some_and(|file_name| FOREIGN_FOLDERS.contains(&file_name))
            {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let path = path
                    .strip_prefix(root())
                    .expect("the path must begin with the root of the repository");
                let path = path.to_owned();
                files.push(File { path, text });
            }
        }
    }
    files.retain(|file| file.is_page() || file.comment().is_some());
    files
}
