//! Parses durations (`500ms`), wait times (`forever`) and switches (`on`) as people write them. The command `quorate`
//! parses its own options in the same way.

use std::time::Duration;

use crate::redact::value;
use crate::settings::Wait;

/// Parses a duration with its unit, for example `500ms` or `1h 30m`.
///
/// # Errors
///
/// An error message that quotes the text and states the expected format.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        let text = value(text);
        format!("'{text}' is not a duration; write it with a unit: 500ms, 10s, 5m, 1h 30m")
    })
}

/// Parses the time that an acquire waits: a duration, `forever` or `none`.
///
/// # Errors
///
/// An error message that quotes the text and states the expected format.
pub fn wait(text: &str) -> Result<Wait, String> {
    match text.trim() {
        "forever" => Ok(Wait::Forever),
        "none" => Ok(Wait::None),
        text => match humantime::parse_duration(text) {
            Ok(Duration::ZERO) => Ok(Wait::None),
            Ok(time) => Ok(Wait::For(time)),
            Err(_) => Err(format!(
                "'{}' is not a duration; write 30s, 5m, 1h 30m, forever or none",
                value(text)
            )),
        },
    }
}

/// Parses a switch: `on`, `true`, `yes` and `1` are true; `off`, `false`, `no` and `0` are false.
///
/// # Errors
///
/// An error message that quotes the text and names `on` and `off`.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        other => Err(format!("'{}' is neither on nor off", value(other))),
    }
}

/// Splits a text at its commas into URLs, and trims the URLs. Does not split at these commas:
///
/// - a comma within a password;
/// - a comma between the hosts of a `zk://`, `etcd://`, `mysql://` or `postgres://` URL. Commas between hosts are not allowed,
///   and the later error about them describes the whole URL.
pub(super) fn urls(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split(',').collect();
    let begins_url = |part: &str| part.contains("://");
    let mut urls: Vec<String> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let rest = parts[index..].iter().take_while(|part| !begins_url(part));
        let is_inside_url = rest.into_iter().any(|part| part.contains('@'));
        match urls.last_mut() {
            Some(url)
                if (is_inside_url && begins_url(url))
                    || (!begins_url(part) && lists_hosts(url, part)) =>
            {
                url.push(',');
                url.push_str(part);
            }
            _ => urls.push((*part).to_owned()),
        }
    }
    urls.iter().map(|url| url.trim().to_owned()).collect()
}

/// Whether `part`, the text after a comma, is probably one more host of `url`. True if `url` is a URL of ZooKeeper,
/// etcd, MySQL or PostgreSQL without a path, and `part` is not empty.
fn lists_hosts(url: &str, part: &str) -> bool {
    let may_list_hosts = |scheme: &str| {
        let names = ["zk", "etcd", "mysql", "mysqls", "postgres", "postgresql"];
        let scheme = scheme.split('+').next().unwrap_or_default();
        names.iter().any(|name| scheme.eq_ignore_ascii_case(name))
    };
    let scheme_and_hosts = url.trim().split_once("://");
    let hosts = scheme_and_hosts.filter(|(scheme, _)| may_list_hosts(scheme));
    !part.trim().is_empty() && hosts.is_some_and(|(_, hosts)| !hosts.contains(['/', '?']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comma_in_a_password_does_not_end_the_url() {
        for (text, expected) in [
            ("redis://a,redis://b", &["redis://a", "redis://b"][..]),
            (
                "redis://:p,w@a, redis://b",
                &["redis://:p,w@a", "redis://b"],
            ),
            (
                "redis://u:,p,,w,@a,redis://b",
                &["redis://u:,p,,w,@a", "redis://b"],
            ),
            ("redis://a,redis://:p,w@b", &["redis://a", "redis://:p,w@b"]),
            // `b` has no scheme, so it is not a URL. It becomes a part of its own, and a later error is about `b`.
            ("redis://a,b", &["redis://a", "b"]),
            ("redis://a,,redis://b", &["redis://a", "", "redis://b"]),
            ("redis://a,", &["redis://a", ""]),
        ] {
            assert_eq!(urls(text), expected, "{text}");
        }
    }

    #[test]
    fn commas_between_hosts_do_not_split_zookeeper_and_mysql_urls() {
        for (text, expected) in [
            ("zk://a:1,b:2,c/p", &["zk://a:1,b:2,c/p"][..]),
            ("mysql://u:p@a,b/d", &["mysql://u:p@a,b/d"]),
            (
                "mysqls://u@a:1,b:2/d,redis://c",
                &["mysqls://u@a:1,b:2/d", "redis://c"],
            ),
            ("mysql://u@a/d,b", &["mysql://u@a/d", "b"]),
            (
                "postgres+tls://u@a:1,b:2/d,redis://c",
                &["postgres+tls://u@a:1,b:2/d", "redis://c"],
            ),
            ("zk://a,b/p,redis://c", &["zk://a,b/p", "redis://c"]),
            ("etcd+tls://a,b,redis://c", &["etcd+tls://a,b", "redis://c"]),
            ("zk://a/p,b", &["zk://a/p", "b"]),
            ("zk://a,", &["zk://a", ""]),
            ("zk://a,zk://b", &["zk://a", "zk://b"]),
        ] {
            assert_eq!(urls(text), expected, "{text}");
        }
    }

    #[test]
    fn wait_setting_accepts_a_duration_or_forever_or_none() {
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("none"), Ok(Wait::None));
        assert_eq!(wait("0s"), Ok(Wait::None));
        assert_eq!(wait("5m"), Ok(Wait::For(Duration::from_secs(300))));
        assert!(wait("5").unwrap_err().contains("'5' is not a duration"));
    }
}
