//! Reads a password from a file in the form of `.pgpass`: lines `host:port:database:user:password`.
//!
//! A `*` in one of the first four fields fits everything. A `:` or `\` in a field is written with a `\` before it. The
//! first line that fits decides. For a Unix socket, the host is `localhost` or the folder of the socket.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use quorate::redact;

/// The connection for which a password is needed.
pub(crate) struct Wanted<'a> {
    /// The names under which a line may list the host.
    pub(crate) hosts: &'a [&'a str],
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

/// Returns the password for `wanted` from this file.
///
/// Fails if users other than the owner of the file have the right to read it, as `psql` does.
pub(crate) fn password(file: &Path, wanted: &Wanted<'_>) -> Result<String, String> {
    let named = || {
        format!(
            "the file {} (passfile)",
            redact::value(&file.to_string_lossy())
        )
    };
    let unreadable = |why: std::io::Error| format!("{} cannot be read: {why}", named());
    let mode = std::fs::metadata(file)
        .map_err(unreadable)?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "other users have rights on {}: run chmod 600 on it",
            named()
        ));
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    find(&text, wanted).ok_or_else(|| {
        format!(
            "{} has no line for this host, port, database and user",
            named()
        )
    })
}

fn find(text: &str, wanted: &Wanted<'_>) -> Option<String> {
    text.lines().find_map(|line| {
        if line.starts_with('#') {
            return None;
        }
        let [host, port, database, user, password] = fields(line)?;
        let fits = |field: &str, value: &str| field == "*" || field == value;
        let is_host = wanted.hosts.iter().any(|name| fits(&host, name));
        let all = is_host
            && fits(&port, &wanted.port.to_string())
            && fits(&database, wanted.database)
            && fits(&user, wanted.user);
        all.then_some(password)
    })
}

/// The five fields of a line; `None` if there are fewer. The last field may contain colons.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == ':' && fields.len() < 5 {
            fields.push(String::new());
            continue;
        }
        let field = fields.last_mut()?;
        match character {
            '\\' => field.extend(characters.next()),
            other => field.push(other),
        }
    }
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<String> {
        let wanted = Wanted {
            hosts: &["db.example"],
            port: 5432,
            database: "locks",
            user: "a:b",
        };
        find(text, &wanted)
    }

    #[test]
    fn first_line_that_fits_gives_the_password() {
        let line = r"db.example:5432:locks:a\:b:p:w\\\:";
        assert_eq!(of(line).as_deref(), Some(r"p:w\:"));
        let lines = format!("# {line}\nother:5432:locks:a\\:b:no\n*:*:*:*:star\n{line}\n");
        assert_eq!(of(&lines).as_deref(), Some("star"));
        for other in [
            "",
            "db.example",
            r"db.example:5433:locks:a\:b:x",
            "*:*:*:a:x",
            "*:*:*:*",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn password_file_that_other_users_may_read_is_refused() {
        let file = std::env::temp_dir().join(format!("quorate-passfile-{}", std::process::id()));
        std::fs::write(&file, "*:*:*:*:secret\n").expect("written");
        let wanted = Wanted {
            hosts: &["h"],
            port: 1,
            database: "d",
            user: "u",
        };
        let read = |mode| {
            let rights = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file, rights).expect("changed");
            password(&file, &wanted)
        };
        assert_eq!(read(0o600).as_deref(), Ok("secret"));
        let why = read(0o640).expect_err("refused");
        assert!(
            why.contains("chmod 600") && !why.contains("secret"),
            "{why}"
        );
        std::fs::remove_file(&file).expect("removed");
    }
}
