//! The request of [`prepare`](crate::prepare) as a script for `etcdctl`.

use crate::greet::random_identity;
use crate::layout::IDENTITY_NAME;
use crate::prepare::grants;
use crate::url::{Address, BadUrl};

/// Returns a shell script that runs `etcdctl` to write the same key as [`prepare`](crate::prepare). This function does
/// not connect to the cluster.
///
/// - The script contains a new random identity. Generate a separate script for each cluster.
/// - The script does not contain the password of `url`. `etcdctl` reads it from the variable `ETCDCTL_PASSWORD`.
/// - If the key exists, it is kept.
/// - Comments at the end contain the commands that grant a user the rights to acquire locks. `USER` is a placeholder.
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn script(url: &str) -> Result<String, BadUrl> {
    let address = Address::read(url)?;
    let scheme = address.http_scheme();
    let endpoints = address
        .hosts
        .iter()
        .map(|host| format!("{scheme}://{host}"));
    let endpoints: Vec<String> = endpoints.collect();
    let user = match address.user.as_str() {
        "" => String::new(),
        user => format!(" --user={}", quoted(user)),
    };
    let identity = random_identity();
    let mut lines = vec![
        "# The identity of an etcd cluster for quorate. Print a new script for each cluster: it contains a random name."
            .to_owned(),
        "# An existing key is kept.".to_owned(),
        format!(
            "ETCDCTL_API=3 etcdctl --endpoints={}{user} txn <<'END'",
            quoted(&endpoints.join(","))
        ),
        format!("create(\"{IDENTITY_NAME}\") = \"0\""),
        String::new(),
        format!("put {IDENTITY_NAME} {identity}"),
        String::new(),
        format!("get {IDENTITY_NAME}"),
        String::new(),
        "END".to_owned(),
        "# Rights for the user that takes locks:".to_owned(),
    ];
    let grants = grants(&address.layout());
    lines.extend(grants.iter().map(|grant| format!("# {grant}")));
    Ok(lines.join("\n") + "\n")
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_has_a_new_identity_and_no_password() {
        let url = "etcd://o'neil:secret@h1+h2:2380/locks";
        let first = script(url).expect("a URL");
        assert_ne!(first, script(url).expect("a URL"));
        assert!(!first.contains("secret"), "{first}");
        for part in [
            "'http://h1:2379,http://h2:2380'",
            "--user='o'\\''neil'",
            "'/locks/'",
        ] {
            assert!(first.contains(part), "{part}: {first}");
        }
    }
}
