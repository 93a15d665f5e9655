//! Reads from an error whether the user lacks the right to a command, a key or a channel.

/// The type of the object that a user has no right to use, according to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    Command,
    Key,
    Channel,
}

impl Denied {
    /// Reads the type from the text of a permission error. The wording differs between server versions. A text with
    /// none of the known wordings is taken for an error about a command.
    pub(super) fn from_error(text: &str) -> Self {
        // The error also quotes the user's name, which can be any text. So search only for words that come after the
        // name.
        if text.contains("to run the '") {
            Self::Command
        } else if text.contains("access a key") || text.contains("one of the keys") {
            Self::Key
        } else if text.contains("access a channel")
            || text.contains("one of the channels")
            || text.contains("publish to the channel")
        {
            Self::Channel
        } else {
            Self::Command
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_errors_of_every_server_version_are_recognised() {
        for (text, denied) in [
            (
                "NOPERM this user has no permissions to run the 'del' command or its subcommand",
                Denied::Command,
            ),
            (
                "NOPERM User one of the keys has no permissions to run the 'del' command",
                Denied::Command,
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Denied::Key,
            ),
            ("NOPERM No permissions to access a key", Denied::Key),
            (
                "NOPERM this user has no permissions to access one of the channels used as arguments",
                Denied::Channel,
            ),
            ("NOPERM No permissions to access a channel", Denied::Channel),
        ] {
            assert_eq!(Denied::from_error(text), denied, "{text}");
        }
    }
}
