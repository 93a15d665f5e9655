//! Parses the error of a script: the error text, the line number, and the right that the Redis user lacks.

use super::call::Call;
use super::denied::Denied;
use crate::keys::{Family, WAKE_CHANNEL_PREFIX};

/// An error that a script raised, without the text that the server adds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Raised<'a> {
    /// The error of the command that failed inside the script. It begins with the error code.
    pub(super) text: &'a str,
    /// The number of the line in the loaded script; `None` if the server does not report it.
    line: Option<usize>,
}

/// The text in front of the line number in an error.
const LINE_PREFIX: &str = "@user_script:";

impl<'a> Raised<'a> {
    /// Parses an error reply. The text of an error that no script raised stays unchanged.
    pub(super) fn read(reply: &'a str) -> Self {
        // Before Redis 7: `ERR Error running script (call to f_..): @user_script:7: @user_script: 7: -OOM ..`
        let unwrapped = reply.strip_prefix("ERR Error running script (call to f_");
        let unwrapped = unwrapped.and_then(|rest| Some(rest.split_once("): ")?.1));
        let mut text = unwrapped.unwrap_or(reply);
        let mut line = None;
        while let Some((number, rest)) = text.strip_prefix(LINE_PREFIX).and_then(split_line_number)
        {
            (text, line) = (rest, Some(number));
        }
        if line.is_some() {
            text = text.strip_prefix('-').unwrap_or(text);
        } else if let Some((_, rest)) = text.rsplit_once(LINE_PREFIX) {
            // From Redis 7 on: `ERR .. script: .., on @user_script:7.`
            line = rest
                .strip_suffix('.')
                .and_then(|digits| digits.parse().ok());
        }
        Self { text, line }
    }

    /// A message that names the command, key or channel that the user has no right to use; `None` for other errors.
    /// `source` is the source of the script that raised the error.
    pub(super) fn denied_message(&self, source: Option<&str>) -> Option<String> {
        let text = self.text.strip_prefix("ERR ").unwrap_or(self.text);
        let beginnings = [
            "The user executing the script can't ",
            "ACL failure in script: ",
        ];
        if !beginnings
            .iter()
            .any(|beginning| text.starts_with(beginning))
        {
            return None;
        }
        let call = self.call(source);
        let action = match Denied::from_error(text) {
            Denied::Command => match denied_command(text).or(call.map(|call| call.command)) {
                Some(name) => format!("run {}", name.to_ascii_uppercase()),
                None => "run a command".to_owned(),
            },
            Denied::Key => match call.and_then(|call| call.family) {
                Some(Family::Lock) => "use the lock key".to_owned(),
                Some(family) => format!("use keys like {}*", family.key_prefix()),
                None => "use a key".to_owned(),
            },
            Denied::Channel => format!("publish on channels like {WAKE_CHANNEL_PREFIX}*"),
        };
        Some(format!(
            "no right to {action} within the script; `quorate doctor` names all missing rights"
        ))
    }

    /// The name of the command that the server does not have, in capitals; `None` if the error does not show it.
    /// `source` is the source of the script that raised the error.
    pub(super) fn missing_command(&self, source: Option<&str>) -> Option<String> {
        let quoted = || {
            let (_, rest) = self.text.split_once(['\'', '`'])?;
            Some(rest.split_once(['\'', '`'])?.0)
        };
        // An error that a script raised names no command.
        let name = match self.call(source) {
            Some(call) => call.command,
            None => quoted()?,
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '|');
        let is_plausible =
            !name.is_empty() && name.len() <= MAX_NAME_LEN && name.chars().all(is_name);
        is_plausible.then(|| name.to_ascii_uppercase())
    }

    /// The call in the line of the script that raised the error.
    fn call<'s>(&self, source: Option<&'s str>) -> Option<Call<'s>> {
        // Subtract 1 because line numbers begin at 1, and 1 for the line of constants above the source.
        let line = self.line?.checked_sub(2)?;
        Call::read(source?.lines().nth(line)?)
    }

    /// Whether the error begins with a code. Before Redis 7, some errors of scripts have none.
    pub(super) fn has_code(&self) -> bool {
        let code = self.text.split(' ').next().unwrap_or_default();
        !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase())
    }
}

/// The longest command name that an error shows, in bytes.
const MAX_NAME_LEN: usize = 32;

/// Splits `rest` into a line number at its beginning and the text after it; `None` if there is no number.
fn split_line_number(rest: &str) -> Option<(usize, &str)> {
    let (digits, rest) = rest.trim_start().split_once(": ")?;
    Some((digits.parse().ok()?, rest))
}

/// The name of the command that the user has no right to; `None` if the text of the error does not contain it.
fn denied_command(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("to run the '")?;
    Some(rest.split_once('\'')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "-- a script\nlocal call = redis.call\ncall('TIME')\ncall('GET', 'quorate:fence:' .. key)\n";

    fn denied_message(reply: &str) -> Option<String> {
        Raised::read(reply).denied_message(Some(SOURCE))
    }

    #[test]
    fn script_error_names_the_denied_call_for_every_server_version() {
        for (reply, expected) in [
            // Error replies of Redis 6.2.
            (
                "ERR Error running script (call to f_ab028c18): @user_script:4: @user_script: 4: The user executing the script can't run this command or subcommand",
                "run TIME ",
            ),
            (
                "ERR Error running script (call to f_89d3fa1c): @user_script:5: @user_script: 5: The user executing the script can't access at least one of the keys mentioned in the command arguments",
                "keys like quorate:fence:* ",
            ),
            (
                "@user_script: 4: The user executing the script can't run this command or subcommand",
                "run TIME ",
            ),
            // Error replies of Redis 7.0.
            (
                "ERR The user executing the script can't run this command or subcommand script: ab028c18, on @user_script:4.",
                "run TIME ",
            ),
            (
                "ERR The user executing the script can't publish to the channel mentioned in the command script: c6, on @user_script:9.",
                "channels like quorate:wake:* ",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "run a command ",
            ),
            // Error replies of Redis versions after 7.0, and of Valkey.
            (
                "ERR ACL failure in script: User u has no permissions to run the 'zadd' command script: ab028c18, on @user_script:4.",
                "run ZADD ",
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: on @user_script:5.",
                "keys like quorate:fence:* ",
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: on @user_script:99.",
                "use a key ",
            ),
        ] {
            let message = denied_message(reply)
                .unwrap_or_else(|| panic!("the error must be recognised as denied: {reply}"));
            assert!(message.contains(expected), "{reply}: {message}");
        }
    }

    #[test]
    fn code_of_an_error_is_a_first_word_of_capital_letters() {
        for (text, has_code) in [
            ("OOM command not allowed", true),
            ("OOM", true),
            ("Oom command not allowed", false),
            ("4 OOM", false),
            ("", false),
            (" OOM", false),
        ] {
            assert_eq!(Raised::read(text).has_code(), has_code, "{text:?}");
        }
    }

    #[test]
    fn missing_command_is_named_if_its_name_looks_like_a_command() {
        let longest = "A".repeat(MAX_NAME_LEN);
        let too_long = "A".repeat(MAX_NAME_LEN + 1);
        for (quoted, is_named) in [
            ("json.set", true),
            ("client|no-evict", true),
            ("my_command", true),
            (longest.as_str(), true),
            (too_long.as_str(), false),
            ("", false),
            ("two words", false),
            ("\u{1b}[2J", false),
        ] {
            let reply = format!("ERR unknown command '{quoted}', with args beginning with: ");
            let name = Raised::read(&reply).missing_command(None);
            let expected = is_named.then(|| quoted.to_ascii_uppercase());
            assert_eq!(name, expected, "{reply}");
        }
    }

    #[test]
    fn only_the_text_that_redis_6_adds_to_script_errors_is_removed() {
        let text_of = |reply: &'static str| Raised::read(reply).text;
        assert_eq!(
            text_of("ERR Error running script (call to f_1): @user_script:8: WRONGTYPE Operation"),
            "WRONGTYPE Operation"
        );
        assert_eq!(
            text_of(
                "ERR Error running script (call to f_1): @user_script:8: @user_script: 8: -OOM command"
            ),
            "OOM command"
        );
        for plain in [
            "OOM command not allowed script: 1, on @user_script:8.",
            "ERR somebody said OOM command",
            "ERR @user_script: 4: OOM",
            "",
        ] {
            assert_eq!(text_of(plain), plain);
            assert_eq!(denied_message(plain), None);
        }
    }
}
