//! Removes user names and passwords from texts. The library, the crates for other kinds of masters and the command
//! use only this module for that.
//!
//! No function here needs a URL that parses: a URL is quoted because something is wrong with it, so nobody can know
//! where its password begins and ends. There are two cases:
//!
//! - The text is known to be the URL of a master, or a value that a user has given ([`url`], [`value`]). It is hidden
//!   as a whole, except for the scheme of the URL.
//! - The text is a message, and may contain such a text somewhere ([`redact`]). Everything that may belong to the user
//!   name or the password is hidden, even if this hides a part of the message.

use std::borrow::Cow;

/// The text that is shown instead of a secret.
const HIDDEN_TEXT: &str = "***";

/// The words of URL schemes, with common misspellings. Only these words are shown before a `://`: any other word may be
/// a part of a password.
const SCHEMES: [&str; 36] = [
    "redis",
    "rediss",
    "reddis",
    "valkey",
    "valkeys",
    "unix",
    "mysql",
    "mysqls",
    "mysql2",
    "mysqlx",
    "mariadb",
    "mariadbs",
    "postgres",
    "postgresql",
    "postgress",
    "pg",
    "pgsql",
    "zk",
    "zks",
    "zookeeper",
    "zookeepers",
    "etcd",
    "etcds",
    "etcd3",
    "consul",
    "mongodb",
    "amqp",
    "jdbc",
    "http",
    "https",
    "ftp",
    "tls",
    "ssl",
    "tcp",
    "srv",
    "sentinel",
];

/// The names of parameters whose values are secret.
const PARAMETERS: [&str; 8] = [
    "password",
    "passwd",
    "pass",
    "pwd",
    "passphrase",
    "secret",
    "auth",
    "credentials",
];

/// The scheme of a URL, if each of its words is known: `mysql+tls` for `mysql+tls://..`.
pub fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.trim().split_once("://")?;
    let mut scheme_words = scheme.split(['+', ':']);
    scheme_words.all(is_scheme).then_some(scheme)
}

fn is_scheme(word: &str) -> bool {
    SCHEMES.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// The URL of a master for an error about this URL: its scheme, and nothing else of it.
pub fn url(url: &str) -> String {
    match scheme(url) {
        Some(scheme) => format!("{scheme}://{HIDDEN_TEXT}"),
        None => HIDDEN_TEXT.to_owned(),
    }
}

/// A value that a user has given for something that is no URL of a master, for an error about this value. If the value
/// may contain a password, for example because it is a URL in the wrong place, nothing but its scheme is shown.
pub fn value(text: &str) -> Cow<'_, str> {
    let known_start = matches!(start_of_secret(text), Some((0, _)));
    let slashes = text.contains(':') && text.contains("//");
    if text.contains('@') || slashes || known_start || start_of_parameter_value(text).is_some() {
        Cow::Owned(url(text))
    } else {
        Cow::Borrowed(text)
    }
}

/// A message without the user names and passwords of the URLs in it. Calling it twice is the same as calling it once.
///
/// - After a `://`, and after a known scheme with a mistyped `://`, everything up to the last `@` before the next URL
///   is hidden, blanks and line breaks included. If no `@` follows, a text that does not look like a host is hidden.
/// - Words that look like `user:password@host:port` are hidden up to their last `@`.
/// - After a parameter such as `password=`, everything before the next URL is hidden, blanks and line breaks included.
///   If the value begins with a quote, the text after the last such quote is shown.
pub fn redact(text: &str) -> Cow<'_, str> {
    let has_secret = text.contains('@')
        || text.contains("//")
        || start_of_parameter_value(text).is_some()
        || start_of_known_url(text).is_some();
    if !has_secret {
        return Cow::Borrowed(text);
    }
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let url = start_of_secret(rest);
        let value = start_of_parameter_value(rest);
        if let Some(index) = value.filter(|index| url.is_none_or(|(scheme, _)| *index <= scheme)) {
            // Text in the value of the parameter that looks like a URL may be a part of a password.
            let (start, shown) = split_value(&rest[index..]);
            redacted.push_str(&hide_logins(&rest[..index]));
            redacted.push_str(start);
            redacted.push_str(HIDDEN_TEXT);
            rest = shown;
            continue;
        }
        let Some((scheme, secret)) = url else { break };
        redacted.push_str(&hide_logins_and_parameters(&rest[..scheme]));
        redacted.push_str(&rest[scheme..secret]);
        let quote = rest[..scheme].chars().next_back();
        rest = &rest[secret..];
        let end = start_of_next_url(rest).unwrap_or(rest.len());
        let (hidden, shown) = split_secret(&rest[..end], quote);
        if hidden {
            redacted.push_str(HIDDEN_TEXT);
        }
        rest = &rest[end - shown.len()..];
        redacted.push_str(&hide_logins_and_parameters(shown));
        rest = &rest[shown.len()..];
    }
    redacted.push_str(&hide_logins_and_parameters(rest));
    Cow::Owned(redacted)
}

/// The first URL in a text: where its scheme begins, and where the text after its `://` begins. The `://` may be
/// mistyped if the scheme is known.
fn start_of_secret(text: &str) -> Option<(usize, usize)> {
    let url_start = text
        .match_indices("://")
        .map(|(index, _)| (scheme_before(text, index), index + 3));
    let url_start = url_start.min();
    let known_url_start = start_of_known_url(text).map(|scheme| {
        let marker = scheme + length_of_scheme(&text[scheme..]);
        let slashes = text[marker..].trim_start_matches([':', '/']);
        (scheme, text.len() - slashes.len())
    });
    [url_start, known_url_start].into_iter().flatten().min()
}

/// Where the scheme that ends at `index` begins.
fn scheme_before(text: &str, index: usize) -> usize {
    let text_before = &text[..index];
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    text_before.trim_end_matches(is_of_scheme).len()
}

/// Where the first known scheme begins that is followed by `://` or a mistyped `://`.
fn start_of_known_url(text: &str) -> Option<usize> {
    let mut from = 0;
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let length = length_of_scheme(&text[from..]);
        if length > 0 && begins_url(&text[from + length..]) {
            return Some(from);
        }
        from += word.len();
    }
    None
}

/// Where the next URL of a list or of a sentence begins. A text that only looks like a mistyped URL does not count,
/// because a password may contain it.
fn start_of_next_url(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let index = from + start_of_known_url(&text[from..])?;
        let char_before = text[..index].chars().next_back();
        let length = length_of_scheme(&text[index..]);
        if char_before.is_some_and(separates_urls) && text[index + length..].starts_with("://") {
            return Some(index);
        }
        from = index + length;
    }
}

/// Whether a URL can begin after this character of a list or of a sentence.
fn separates_urls(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | '(' | '\'' | '"' | '`')
}

/// The length of the known scheme at the beginning of a text, with an addition such as `+tls`; 0 if there is none.
fn length_of_scheme(text: &str) -> usize {
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || c == '+';
    let length = text.find(|c| !is_of_scheme(c)).unwrap_or(text.len());
    let mut scheme_words = text[..length].split('+');
    if scheme_words.next().is_some_and(is_scheme) {
        length
    } else {
        0
    }
}

/// Whether a text, which follows a scheme, looks like `://` with or without typing errors.
fn begins_url(text: &str) -> bool {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(':'), Some(second)) => !second.is_whitespace(),
        (Some('/'), Some('/')) => true,
        _ => false,
    }
}

/// Splits a text, which begins after the `://` of a URL: whether anything must be hidden, and the rest that is shown.
/// `quote` is the character before the URL.
fn split_secret(text: &str, quote: Option<char>) -> (bool, &str) {
    if let Some(rest) = text.strip_prefix(HIDDEN_TEXT) {
        // This was hidden before, so that the text after it belongs to the message.
        return (true, rest);
    }
    if let Some(index) = text.rfind('@') {
        return (true, &text[index..]);
    }
    let quote = quote.filter(|c| matches!(c, '\'' | '"' | '`'));
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | ')' | '\'' | '"' | '`');
    let end = match quote.map(|quote| text.rfind(quote)) {
        Some(Some(end)) => end,
        _ => text.find(is_end).unwrap_or(text.len()),
    };
    let is_whole = matches!(quote, Some(quote) if text[end..].starts_with(quote));
    if is_location(&text[..end]) && !(is_whole && start_of_parameter_value(&text[..end]).is_some())
    {
        return (false, text);
    }
    (true, &text[end..])
}

/// Whether a text without `@` is an address and not `user:password`: the text after each colon is a port number.
fn is_location(text: &str) -> bool {
    let hosts = text.split(['/', '?', '[', '#']).next().unwrap_or_default();
    if hosts.ends_with(':') && hosts.len() < text.len() {
        // A password that begins with one of these characters.
        return false;
    }
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '+' | '*');
    let mut ports = hosts.split('+').filter_map(|host| host.split_once(':'));
    let is_port = |port: &str| {
        let port = port.trim_end_matches([':', '.']);
        port.is_empty() || port == "port" || port.parse::<u16>().is_ok()
    };
    let ipv6 = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let is_of_ipv6 = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let is_ipv6 = ipv6.is_some_and(|(host, _)| host.chars().all(is_of_ipv6));
    if text.starts_with('[') {
        return is_ipv6;
    }
    hosts.chars().all(is_plain) && ports.all(|(_, port)| is_port(port))
}

/// The words of a text that contains no URL with a scheme.
fn hide_logins_and_parameters(text: &str) -> String {
    hide_logins(&hide_parameters(text))
}

/// A text without the logins of the words that look like `user:password@host:port`.
fn hide_logins(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    for word in text.split_inclusive(char::is_whitespace) {
        let start = word.len() - word.trim_start_matches(['\'', '"', '`', '(']).len();
        match word.rfind('@').filter(|index| *index >= start) {
            Some(index) if is_login(&word[start..index], &word[index + 1..]) => {
                redacted.push_str(&word[..start]);
                redacted.push_str(HIDDEN_TEXT);
                redacted.push_str(&word[index..]);
            }
            _ => redacted.push_str(word),
        }
    }
    redacted
}

/// Whether the texts before and after an `@` look like a login and a host. A name with an `@`, such as
/// `account:bob@example.org`, does not.
fn is_login(before: &str, after: &str) -> bool {
    let port = after.split([':', '/']).nth(1).unwrap_or_default();
    let has_port = port.starts_with(|c: char| c.is_ascii_digit());
    before.contains("//") || before.starts_with(':') || before.contains(':') && has_port
}

/// Where the value of the first secret parameter begins.
fn start_of_parameter_value(text: &str) -> Option<usize> {
    let is_secret = |(index, _): &(usize, &str)| {
        let name = text[..*index].trim_end();
        PARAMETERS.iter().any(|secret_name| {
            let from = name.len().checked_sub(secret_name.len());
            let name_end = from.and_then(|from| name.get(from..));
            name_end.is_some_and(|name_end| name_end.eq_ignore_ascii_case(secret_name))
        })
    };
    let mut equals = text.match_indices('=').filter(is_secret);
    equals.next().map(|(index, _)| index + 1)
}

/// A text without the values of secret parameters.
fn hide_parameters(text: &str) -> Cow<'_, str> {
    let Some(mut index) = start_of_parameter_value(text) else {
        return Cow::Borrowed(text);
    };
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let (start, shown) = split_value(&rest[index..]);
        redacted.push_str(&rest[..index]);
        redacted.push_str(start);
        redacted.push_str(HIDDEN_TEXT);
        rest = shown;
        match start_of_parameter_value(rest) {
            Some(next) => index = next,
            None => break,
        }
    }
    redacted.push_str(rest);
    Cow::Owned(redacted)
}

/// Splits a text, which begins after the `=` of a secret parameter: the blanks and the quote that are shown before the
/// hidden value, and the rest that is shown after it.
fn split_value(text: &str) -> (&str, &str) {
    let value = text.trim_start();
    let first_char = value.chars().next();
    let quote = first_char.filter(|c| matches!(c, '\'' | '"' | '`'));
    let value = &value[quote.map_or(0, char::len_utf8)..];
    let text_before = &text[..text.len() - value.len()];
    if let Some(rest) = value.strip_prefix(HIDDEN_TEXT)
        && !rest.starts_with(char::is_alphanumeric)
    {
        // This was hidden before, so that the text after it belongs to the message.
        return (text_before, rest);
    }
    let end = start_of_next_url(value).unwrap_or(value.len());
    let end = match quote.and_then(|quote| value[..end].rfind(quote)) {
        Some(closing) => closing,
        None => value[..end].trim_end_matches(separates_urls).len(),
    };
    (text_before, &value[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_shown_without_the_passwords_of_urls_in_it() {
        for (text, redacted) in [
            (
                "cannot use 'redis://bob:s3cret@10.0.0.1:6379/2': no",
                "cannot use 'redis://***@10.0.0.1:6379/2': no",
            ),
            ("redis://:p@ss@host", "redis://***@host"),
            ("redis//:s3cret@host", "redis//:***@host"),
            ("valkey//:s3cret@host", "valkey//:***@host"),
            ("REDIS//:s3cret@host", "REDIS//:***@host"),
            ("redis:bob:s3cret@host:6379", "redis:***@host:6379"),
            ("mysqls//bob:s3cret@host/db", "mysqls//***@host/db"),
            ("mariadb:bob:s3cret@host/db", "mariadb:***@host/db"),
            ("zk+tls:/bob:s3cret@h1+h2/p", "zk+tls:/***@h1+h2/p"),
            ("Zk:/bob:s3cret@host", "Zk:/***@host"),
            (":s3cret@host:6379", "***@host:6379"),
            ("bob:s3cret@host:6379", "***@host:6379"),
            ("rddis//:s3cret@host", "***@host"),
            (
                "--masters=redis//:s3cret@host",
                "--masters=redis//:***@host",
            ),
            ("unix:/run/r.sock?pass=s3cret", "unix:/run/r.sock?pass=***"),
            ("/run/r.sock?db=1&pass=s3cret", "/run/r.sock?db=1&pass=***"),
            (
                "valkey//:s3cret@h1,redis://:s3cret@h2",
                "valkey//:***@h1,redis://***@h2",
            ),
            ("'redis://:s3,cr'et@host': no", "'redis://***@host': no"),
            (
                "unix:///run/r.sock?user=a&pass=s3cret&db=1",
                "unix:///run/r.sock?user=a&pass=***",
            ),
            ("redis:bob:s3cret", "redis:***"),
            (
                "redis://a:b@h1,redis://c:d@h2",
                "redis://***@h1,redis://***@h2",
            ),
            (
                "bad 'mysql://bob:s3 cr\n\u{a0}et@h/d': no",
                "bad 'mysql://***@h/d': no",
            ),
            ("bad 'mysql://bob:s3 cret': no", "bad 'mysql://***': no"),
            ("bad mysql://bob:s3cret, no", "bad mysql://***, no"),
            ("bad redis://bob:a://s3cret@h", "bad redis://***@h"),
            ("bad 'redis://:/s3cret', no", "bad 'redis://***', no"),
            ("bad redis://bob:#s3cret, no", "bad redis://***, no"),
            ("bad 'zk://bob:?s3cret', no", "bad 'zk://***', no"),
            ("bad 'redis://:[s3cret', no", "bad 'redis://***', no"),
            ("bad redis://[s3cret, no", "bad redis://***, no"),
            (
                "bad 'unix:///s?pass=s3 cret&x' (db)",
                "bad 'unix://***' (db)",
            ),
            // A user name in a later word could be the end of a password with blanks.
            (
                "(redis://h: user bob@h1 is locked)",
                "(redis://***@h1 is locked)",
            ),
            (
                "master mysql://***: user bob@h1",
                "master mysql://***: user bob@h1",
            ),
        ] {
            assert_eq!(redact(text), redacted);
            assert_eq!(redact(redacted), redacted, "a second time");
        }
    }

    #[test]
    fn message_is_shown_without_the_values_of_secret_parameters_in_it() {
        for (text, redacted) in [
            ("password=s3 cret", "password=***"),
            ("password=s3&cret=\n s3cret", "password=***"),
            ("Password = s3 cret", "Password = ***"),
            (
                "--password='s3 cret' is no option",
                "--password='***' is no option",
            ),
            ("auth=\"s3'\" cret\" (no)", "auth=\"***\" (no)"),
            ("auth='s3 cret", "auth='***"),
            ("password=s3://cret", "password=***"),
            ("password=redis://s3cret", "password=***"),
            ("pass=s3 cret, redis://a:b@h2", "pass=***, redis://***@h2"),
            ("pass=***s3cret", "pass=***"),
            (
                "redis://a:b@h1?pass=s3 cret redis://c:d@h2",
                "redis://***@h1?pass=*** redis://***@h2",
            ),
            ("bob:s3@h:1?password=s3 cret", "***@h:1?password=***"),
        ] {
            assert_eq!(redact(text), redacted);
            assert_eq!(redact(redacted), redacted, "a second time");
        }
    }

    #[test]
    fn message_without_passwords_is_not_changed() {
        for text in [
            "user 'bob'@'h1' is locked",
            "waiting for 'account:bob@example.org'",
            "mail to bob@example.org",
            "for example --masters redis://10.0.0.1,redis://10.0.0.2:7000/2",
            "expected redis://host:port[/db], rediss://host:port[/db] (TLS) or unix:///path[?db=N]; \
             valkey:// and valkeys:// mean the same",
            "give a mysql:// or zk:// URL",
            "write zk://host:2181+host/path",
            "redis://[::1]:7000/2 is down",
            "mysql h:3306/db: Access denied for user 'bob'@'h1'",
            "TLS: the PEM text contains no certificate",
            "token=17",
        ] {
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn value_that_may_contain_a_password_is_hidden_as_a_whole() {
        for (text, shown) in [
            ("ten", "ten"),
            ("/etc/quorate.toml", "/etc/quorate.toml"),
            ("127.0.0.1:8125", "127.0.0.1:8125"),
            ("redis://bob:s3 cret", "redis://***"),
            (" mysql+tls://bob:s3 cret@h", "mysql+tls://***"),
            ("redis//s3 cret", "***"),
            ("redis:s3 cret", "***"),
            ("bob:s3cret@h", "***"),
            ("x?password=s3 cret", "***"),
            ("s3cret://h", "***"),
        ] {
            assert_eq!(value(text), shown);
            assert!(!url(text).contains("s3"));
        }
    }
}
