//! Decides whether a request may be answered: its method, its Host header, its origin and its password.

use std::net::{IpAddr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode};
use subtle::ConstantTimeEq;

/// The password of the page. Its text is in no output.
#[derive(Clone)]
pub struct Password(Vec<u8>);

impl Password {
    /// A password from the content of a file: its first line. `None` if the line is empty.
    pub fn from_file_content(content: &[u8]) -> Option<Self> {
        let line = content
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (!line.is_empty()).then(|| Self(line.to_vec()))
    }

    fn matches(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The clients that may read the page.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Host names, in lower case, that the Host header may have in addition to IP addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    pub(crate) password: Option<Password>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Method,
    Host,
    Origin,
    Password,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::Password => StatusCode::UNAUTHORIZED,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Method => "this page only reads: use GET or HEAD\n",
            Self::Host => "the Host header is not a name of this page: give the name with --host\n",
            Self::Origin => "another site may not read this page\n",
            Self::Password => "a password is needed\n",
        }
    }
}

impl Access {
    /// Checks a request. The path `/healthz` needs no password, because it shows nothing.
    pub(crate) fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        if method != Method::GET && method != Method::HEAD {
            return Err(Refusal::Method);
        }
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        // A web site whose name leads to this address (DNS rebinding) has another Host header.
        if hosts.next().is_some() || !host.is_some_and(|host| self.knows_host(host)) {
            return Err(Refusal::Host);
        }
        let site = headers
            .get("sec-fetch-site")
            .map(hyper::http::HeaderValue::as_bytes);
        // Browsers send no `Sec-Fetch-Site` to an address without TLS, unless it is that of their own machine.
        let is_own = |origin: &hyper::http::HeaderValue| {
            let origin = origin.to_str().ok().and_then(|text| text.split_once("://"));
            origin.zip(host).is_some_and(|((_, name), host)| {
                without_port(name).eq_ignore_ascii_case(without_port(host))
            })
        };
        let is_foreign = matches!(site, Some(b"cross-site" | b"same-site"))
            || !headers.get_all(ORIGIN).iter().all(is_own);
        if path != "/" && is_foreign {
            return Err(Refusal::Origin);
        }
        match &self.password {
            Some(password) if path != "/healthz" && !has_password(password, headers) => {
                Err(Refusal::Password)
            }
            _ => Ok(()),
        }
    }

    fn knows_host(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let address = name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(&name);
        // An address cannot be the name of another site.
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.hosts.contains(&name)
    }
}

/// The host of a Host header: `name:port`, `1.2.3.4:port` or `[::1]:port`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

fn has_password(password: &Password, headers: &HeaderMap) -> bool {
    let header = headers
        .get(AUTHORIZATION)
        .map(hyper::http::HeaderValue::as_bytes)
        .unwrap_or_default();
    let Some((scheme, encoded)) = header.split_at_checked(6) else {
        return false;
    };
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return false;
    }
    let Ok(pair) = STANDARD.decode(encoded.trim_ascii()) else {
        return false;
    };
    // Any user name is accepted: the page has one password.
    let colon = pair.iter().position(|byte| *byte == b':');
    colon.is_some_and(|colon| password.matches(&pair[colon + 1..]))
}

/// Whether only this machine can connect to the address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn access(password: Option<&str>) -> Access {
        Access {
            hosts: vec!["locks.example".to_owned()],
            password: password.and_then(|text| Password::from_file_content(text.as_bytes())),
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("a header"));
        }
        headers
    }

    fn check(access: &Access, pairs: &[(&'static str, &str)]) -> Result<(), Refusal> {
        access.check(&Method::GET, "/api/state", &headers(pairs))
    }

    #[test]
    fn host_header_must_be_an_address_or_a_name_of_the_page() {
        let access = access(None);
        for host in [
            "127.0.0.1:7272",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7272",
            "[::1]",
            "10.0.0.7",
            "Locks.Example:443",
        ] {
            assert_eq!(check(&access, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7272",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil.example",
            "[::1",
        ] {
            assert_eq!(
                check(&access, &[("host", host)]),
                Err(Refusal::Host),
                "{host}"
            );
        }
        assert_eq!(check(&access, &[]), Err(Refusal::Host));
        assert_eq!(
            check(&access, &[("host", "localhost"), ("host", "localhost")]),
            Err(Refusal::Host)
        );
    }

    #[test]
    fn only_get_and_head_are_allowed() {
        let access = access(None);
        let headers = headers(&[("host", "localhost")]);
        for method in [
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::OPTIONS,
            Method::CONNECT,
        ] {
            assert_eq!(
                access.check(&method, "/", &headers),
                Err(Refusal::Method),
                "{method}"
            );
        }
        assert_eq!(access.check(&Method::HEAD, "/", &headers), Ok(()));
    }

    #[test]
    fn other_site_may_link_to_the_page_but_not_read_its_data() {
        let access = access(None);
        let headers = headers(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]);
        assert_eq!(
            access.check(&Method::GET, "/api/events", &headers),
            Err(Refusal::Origin)
        );
        assert_eq!(access.check(&Method::GET, "/", &headers), Ok(()));
        for (host, origin, expected) in [
            ("10.0.0.7:7272", "http://10.0.0.7:7272", Ok(())),
            ("locks.example", "https://Locks.Example:8443", Ok(())),
            ("10.0.0.7:7272", "http://evil.example", Err(Refusal::Origin)),
            (
                "10.0.0.7:7272",
                "http://10.0.0.8:7272",
                Err(Refusal::Origin),
            ),
            ("10.0.0.7:7272", "null", Err(Refusal::Origin)),
        ] {
            let pairs = [("host", host), ("origin", origin)];
            assert_eq!(check(&access, &pairs), expected, "{origin}");
        }
    }

    #[test]
    fn password_must_be_right() {
        let access = access(Some("se:cret\nsecond line"));
        let with = |text: &str| {
            let value = format!("Basic {}", STANDARD.encode(text));
            check(&access, &[("host", "localhost"), ("authorization", &value)])
        };
        assert_eq!(with("any:se:cret"), Ok(()));
        for wrong in [
            "any:",
            "any:se:cre",
            "any:se:crets",
            "se:cret",
            "secret",
            "",
        ] {
            assert_eq!(with(wrong), Err(Refusal::Password), "{wrong}");
        }
        for header in ["", "Basic", "Basic ", "Basic !!!", "Bearer c2U6Y3JldA=="] {
            let pairs = [("host", "localhost"), ("authorization", header)];
            assert_eq!(check(&access, &pairs), Err(Refusal::Password), "{header}");
        }
        let headers = headers(&[("host", "localhost")]);
        assert_eq!(access.check(&Method::GET, "/healthz", &headers), Ok(()));
        assert_eq!(format!("{:?}", access.password), "Some(Password(..))");
        assert!(Password::from_file_content(b"\nsecret").is_none());
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for (address, expected) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
        ] {
            let parsed = address.parse().expect("an address");
            assert_eq!(is_loopback(&parsed), expected, "{address}");
        }
    }
}
