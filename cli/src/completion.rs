//! Prints completion scripts, which are generated from the definition of the command line. After `--`, the scripts
//! complete the command that quorate runs.

use clap::Args;
use clap_complete::Shell;

use crate::exit::{self, CommandResult};
use crate::output;

/// The text below the options of `quorate completions --help`.
pub(crate) const AFTER_HELP: &str = "\
After --, the shell completes the command as if you had typed it without quorate.

Examples:
    quorate completions bash > ~/.local/share/bash-completion/completions/quorate
    quorate completions zsh > ~/.zfunc/_quorate
    quorate completions fish > ~/.config/fish/completions/quorate.fish";

/// Appended to the generated bash script. Completes the command after `--` with the function `_command_offset` of the
/// package bash-completion. If that package is not installed, completes names of programs and files instead.
const BASH_EXTRA: &str = r#"
_quorate_or_command() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return
    done
    _quorate "$@"
}
complete -F _quorate_or_command -o bashdefault -o default quorate
"#;

/// Appended to the generated fish script. Completes the command after `--`.
const FISH_EXTRA: &str = r#"
function __fish_quorate_command
    set -l words (commandline -opc) (commandline -ct)
    set -l at (contains -i -- -- $words)
    test -n "$at"; and complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-1]))
end
complete -c quorate -n 'contains -- -- (commandline -opc)' -xa '(__fish_quorate_command)'
"#;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell that the script is for
    shell: Shell,
}

/// Prints the completion script for the given shell.
pub(crate) fn run(args: &CompletionArgs, mut commands: clap::Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "quorate", &mut script);
    output::print_raw(&script)?;
    let extra_script = match args.shell {
        Shell::Bash => BASH_EXTRA,
        Shell::Fish => FISH_EXTRA,
        // The generated zsh script already completes the command after `--`.
        _ => "",
    };
    output::print_raw(extra_script.as_bytes())?;
    Ok(exit::OK)
}
