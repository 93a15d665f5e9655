//! The address of a master, and its name in reports.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
#[cfg(feature = "redis")]
use redis::{ConnectionAddr, ConnectionInfo};
use url::{Host, Url};

use crate::node::NodeName;
use crate::redact;

/// A parsed master URL.
#[derive(Clone)]
pub(crate) struct Address {
    pub(super) target: Target,
    pub(super) tls: bool,
    name: NodeName,
}

/// Where a server is, and how the client logs in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// The number of the database.
    pub(super) database: i64,
}

/// The socket on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A host name or an IP address without brackets, and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The port of a Redis server if the URL names none.
const DEFAULT_PORT: u16 = 6379;

impl Target {
    /// Reads a URL of the form `redis://..` or `unix://..`. `None` if it is not valid.
    fn parse(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        if url.scheme() == "unix" {
            return Self::from_socket_url(&url);
        }
        let host = match url.host()? {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(ip) => ip.to_string(),
            Host::Ipv6(ip) => ip.to_string(),
        };
        // No server can be reached at a wildcard address.
        if host == "0.0.0.0" || host == "::" {
            return None;
        }
        let decoded = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.ok().map(String::from)
        };
        let user = url.username();
        let path = url.path().trim_matches('/');
        Some(Self {
            endpoint: Endpoint::Tcp(host, url.port().unwrap_or(DEFAULT_PORT)),
            user: if user.is_empty() {
                None
            } else {
                Some(decoded(user)?)
            },
            password: match url.password() {
                Some(password) => Some(decoded(password)?),
                None => None,
            },
            database: if path.is_empty() {
                0
            } else {
                path.parse().ok()?
            },
        })
    }

    /// Reads the URL of a Unix socket: `unix:///path?db=2&user=ann&pass=secret`.
    fn from_socket_url(url: &Url) -> Option<Self> {
        let mut target = Self {
            endpoint: Endpoint::Unix(url.to_file_path().ok()?),
            user: None,
            password: None,
            database: 0,
        };
        for (name, value) in url.query_pairs() {
            match &*name {
                "db" => target.database = value.parse().ok()?,
                "user" => target.user = Some(value.into_owned()),
                "pass" => target.password = Some(value.into_owned()),
                _ => {}
            }
        }
        Some(target)
    }

    /// The address as reports show it.
    fn name(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Endpoint::Tcp(host, port) => format!("{host}:{port}"),
            Endpoint::Unix(path) => path.display().to_string(),
        }
    }
}

/// Why an address cannot be used. `shown_address` is what an error may show of the address; `None` for nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadAddress {
    pub(crate) shown_address: Option<String>,
    pub(crate) why: String,
}

const SCHEMES_HINT: &str = "expected redis://host:port[/db], rediss://host:port[/db] (TLS) or unix:///path[?db=N]; \
                       valkey:// and valkeys:// mean the same as redis:// and rediss://";

/// The hint for a URL whose password may contain `/`, `?` or `#`. If they are not escaped, the part of the URL before
/// them is read as the host.
const ENCODING_HINT: &str = "in a password, write %2F for /, %3F for ? and %23 for #";

/// The URL schemes of masters that are not Redis or Valkey.
const OTHER_KINDS: [&str; 6] = ["mysql", "mariadb", "postgres", "zk", "zookeeper", "etcd"];

/// The parameters that the URL of a Unix socket may have. Other URLs have none.
const SOCKET_PARAMETERS: [&str; 3] = ["db", "user", "pass"];

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, BadAddress> {
        let url = url.trim();
        let bad_address = |why: String| BadAddress {
            shown_address: (!url.is_empty()).then(|| redact::url(url)),
            why,
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(bad_address(format!("no scheme: {SCHEMES_HINT}")));
        };
        let scheme = scheme.to_ascii_lowercase();
        let tls = wants_tls(&scheme, url).map_err(bad_address)?;
        let socket = scheme.ends_with("unix");
        check_rest(rest, socket).map_err(bad_address)?;
        // For the rest of the address, it makes no difference whether the connection uses TLS.
        let plain_url = if socket {
            format!("unix://{rest}")
        } else {
            format!("redis://{rest}")
        };
        // Do not show the message of the parser: it may quote the URL, including the password.
        let unclear = || {
            bad_address(if is_port_out_of_range(rest) {
                "the port is out of range: use 1 to 65535".to_owned()
            } else {
                format!("not a valid URL: {SCHEMES_HINT}")
            })
        };
        let target = Target::parse(&plain_url).ok_or_else(unclear)?;
        let name = target.name();
        if name.starts_with(':') {
            return Err(bad_address(format!("no host: {SCHEMES_HINT}")));
        }
        let name = NodeName::new(name);
        Ok(Self { target, tls, name })
    }

    /// Takes the address from a client of the `redis` crate, with its user, password, database and TLS settings.
    #[cfg(feature = "redis")]
    pub(crate) fn from_client(info: &ConnectionInfo) -> Result<Self, BadAddress> {
        // `why` is the reason why this address cannot be used, even if it can be shown.
        let (endpoint, tls, why) = match info.addr() {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            } => {
                let why = match () {
                    () if !cfg!(feature = "tls-rustls") => {
                        Some("TLS is not built in: turn on the feature \"tls-rustls\"")
                    }
                    () if *insecure => Some("host names are always checked: remove `insecure`"),
                    () if tls_params.is_some() => Some(
                        "the certificates in this `redis::Client` cannot be read: pass them to tls(..) instead",
                    ),
                    () => None,
                };
                (Some(Endpoint::Tcp(host.clone(), *port)), true, why)
            }
            ConnectionAddr::Tcp(host, port) => {
                (Some(Endpoint::Tcp(host.clone(), *port)), false, None)
            }
            ConnectionAddr::Unix(path) => (Some(Endpoint::Unix(path.clone())), false, None),
            _ => (None, false, None),
        };
        let settings = info.redis_settings();
        let target = endpoint.map(|endpoint| Target {
            endpoint,
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            database: settings.db(),
        });
        let name = target.as_ref().map(Target::name);
        let name = name.filter(|name| !name.starts_with(':'));
        let why = why.or(name.is_none().then_some("no host"));
        match (why, target.zip(name)) {
            (None, Some((target, name))) => Ok(Self {
                target,
                tls,
                name: NodeName::new(name),
            }),
            (why, shown) => Err(BadAddress {
                shown_address: shown.map(|(_, name)| name),
                why: why.unwrap_or("no address").to_owned(),
            }),
        }
    }

    /// Whether the URL asks for TLS.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn wants_tls(&self) -> bool {
        self.tls
    }

    pub(crate) fn name(&self) -> &NodeName {
        &self.name
    }

    /// Whether two addresses name the same server. Differences in the database number, the user and the spelling of the
    /// loopback address are ignored.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        self.server_name() == other.server_name()
    }

    /// The name of the server without the database number. All spellings of the same address give the same name.
    pub(crate) fn server_name(&self) -> String {
        let name = self.name.as_str().to_ascii_lowercase();
        name.replace("localhost:", "127.0.0.1:")
    }

    /// The name of the server. It contains the database number if that is not 0, because each database has its own
    /// locks. All spellings of the same address give the same name.
    pub(crate) fn full_name(&self) -> String {
        match self.target.database {
            0 => self.server_name(),
            database => format!("{}/{database}", self.server_name()),
        }
    }
}

/// Whether a URL with this scheme asks for TLS. An error if the scheme is not that of a Redis or Valkey master.
fn wants_tls(scheme: &str, url: &str) -> Result<bool, String> {
    match scheme {
        "redis" | "valkey" | "unix" | "redis+unix" => Ok(false),
        "rediss" | "valkeys" if cfg!(feature = "tls-rustls") => Ok(true),
        "rediss" | "valkeys" => {
            Err("TLS is not built in: turn on the feature \"tls-rustls\"".to_owned())
        }
        other if OTHER_KINDS.iter().any(|kind| other.starts_with(kind)) => Err(
            "this scheme needs the crate quorate-mysql, quorate-postgres, quorate-zookeeper or quorate-etcd; see node(..)"
                .to_owned(),
        ),
        // An unknown word may be a part of a password that contains `://`.
        _ if redact::scheme(url).is_none() => Err(format!("unknown scheme: {SCHEMES_HINT}")),
        _ => Err(format!("unknown scheme {scheme:?}: {SCHEMES_HINT}")),
    }
}

/// Checks the text after the scheme for mistakes that the URL parser does not report, or reports misleadingly. `socket`
/// says whether it is the address of a Unix socket.
fn check_rest(rest: &str, socket: bool) -> Result<(), String> {
    if rest.is_empty() || rest.starts_with('?') {
        return Err(format!(
            "no address after the scheme; write one of: {SCHEMES_HINT}"
        ));
    }
    // The parser would remove tabs and line breaks, so that the client would log in with another password.
    if rest.contains(char::is_control) {
        return Err(format!(
            "a tab, line break or other control character is not allowed: {ENCODING_HINT}, %09 for a tab and %0A for a line break"
        ));
    }
    if rest.contains('#') {
        return Err(format!("a fragment (#..) is not allowed: {ENCODING_HINT}"));
    }
    if !socket && is_unclear(rest) {
        return Err(format!("parameters (?..) are not allowed: {ENCODING_HINT}"));
    }
    if has_unknown_parameter(rest, socket) {
        return Err(if socket {
            format!("unknown parameter: use db, user or pass; {ENCODING_HINT} and %26 for &")
        } else {
            format!("parameters (?..) are not allowed: {ENCODING_HINT}")
        });
    }
    Ok(())
}

/// Whether an `@` follows a `?` or `#`. Then everything before the `@` may be a password.
fn is_unclear(rest: &str) -> bool {
    let after = rest.split_once(['?', '#']);
    after.is_some_and(|(_, after)| after.contains('@'))
}

/// Whether an address has a parameter that is not known. Only the address of a Unix socket (`socket`) may have
/// parameters. Neither name nor value is shown to the user, because both may be a part of a password.
fn has_unknown_parameter(rest: &str, socket: bool) -> bool {
    let Some((_, query)) = rest.split_once('?') else {
        return false;
    };
    let mut parameter_names = query
        .split('&')
        .map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    let is_known = |name: &&str| socket && SOCKET_PARAMETERS.contains(name);
    parameter_names.any(|name| !is_known(&name))
}

/// Whether the port number of an address is larger than 65535. The number is not shown to the user, because it may be a
/// password.
fn is_port_out_of_range(rest: &str) -> bool {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let (_, port) = host.rsplit_once(':').unwrap_or_default();
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_number && port.parse::<u16>().is_err()
}

/// The address of a master as the caller passed it to the builder: a URL, or a client of the `redis` crate.
#[derive(Clone)]
pub(crate) enum MasterSource {
    ByUrl(String),
    #[cfg(feature = "redis")]
    AsClient(Box<ConnectionInfo>),
}

impl MasterSource {
    pub(crate) fn address(&self) -> Result<Address, BadAddress> {
        match self {
            Self::ByUrl(url) => Address::parse(url),
            #[cfg(feature = "redis")]
            Self::AsClient(info) => Address::from_client(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(url: &str) -> String {
        Address::parse(url).map_or_else(|error| error.why, |address| address.name().to_string())
    }

    #[test]
    fn master_names_contain_no_credentials() {
        assert_eq!(
            named("redis://user:s3cret@example.org/2"),
            "example.org:6379"
        );
        assert_eq!(named("redis://:s3cret@[::1]:7000"), "[::1]:7000");
        assert_eq!(
            named("unix:///run/redis.sock?db=2&pass=s3cret"),
            "/run/redis.sock"
        );
    }

    #[test]
    fn error_about_a_port_above_65535_names_the_range_but_not_the_number() {
        for url in ["redis://h:175011", "redis://:s3cret@h:175011/2"] {
            assert_eq!(
                named(url),
                "the port is out of range: use 1 to 65535",
                "{url}"
            );
        }
    }

    #[test]
    fn error_about_a_bad_address_gives_the_reason_without_the_password() {
        for url in [
            "",
            "10.0.0.1:6379",
            "http://user:s3cret@host",
            "oracle://user:s3cret@host/db",
            "redis://",
            "redis://user:s3cret@host:notaport",
            "redis://user:s3cret@host/notadb",
            "user:s3cret@host",
            "redis://user:s3cret",
            "redis://:s3cret",
            "user:s3cret",
        ] {
            let error = Address::parse(url)
                .err()
                .unwrap_or_else(|| panic!("{url:?} must be refused"));
            assert!(
                error.why.contains("redis://host:port"),
                "{url:?}: {error:?}"
            );
            assert!(
                !format!("{error:?}").contains("s3cret"),
                "{url:?}: {error:?}"
            );
        }
    }

    #[test]
    fn hint_about_a_bad_address_names_all_schemes_and_a_valid_unix_address() {
        let hint = named("nonsense");
        for scheme in ["redis://", "rediss://", "valkey://", "valkeys://"] {
            assert!(hint.contains(scheme), "the hint must name {scheme}: {hint}");
        }
        assert!(hint.contains("unix:///path[?db=N]"), "{hint}");
        let address = Address::parse("unix:///path?db=3").ok();
        let address = address.expect("an address of the form in the hint must be accepted");
        assert_eq!(address.name().as_str(), "/path");
        assert_eq!(address.target.database, 3);
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn rediss_and_valkeys_urls_use_tls() {
        for (url, tls) in [
            ("rediss://host:7000", true),
            ("valkeys://host:7000", true),
            ("VALKEYS://host:7000", true),
            ("valkey://host:7000", false),
        ] {
            let address = Address::parse(url).ok();
            let address = address.unwrap_or_else(|| panic!("{url:?} must be accepted"));
            assert_eq!((address.name().as_str(), address.tls), ("host:7000", tls));
        }
    }

    #[test]
    fn schemes_of_valkey_and_schemes_in_capital_letters_are_accepted() {
        for url in [
            "REDIS://host:7000",
            "valkey://host:7000",
            "Valkey://host:7000/3",
        ] {
            assert_eq!(named(url), "host:7000", "{url}");
        }
        assert_eq!(named("UNIX:///run/redis.sock?db=2"), "/run/redis.sock");
    }

    #[test]
    fn error_about_an_unknown_parameter_contains_neither_its_name_nor_its_value() {
        for (url, why) in [
            ("redis://host?timeout=5s3cret", "are not allowed"),
            ("redis://host/2?db=3", "are not allowed"),
            (
                "unix:///run/redis.sock?db=2&password=s3cret",
                "use db, user or pass",
            ),
            (
                "unix:///run/redis.sock?pass=p@&s3cret",
                "use db, user or pass; in a password, write",
            ),
        ] {
            let error = Address::parse(url)
                .err()
                .expect("the address must be refused");
            assert!(error.why.contains(why), "{error:?}");
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[test]
    fn error_about_an_at_sign_after_the_host_does_not_show_the_password() {
        for url in [
            "redis://host?password=p@s3cret",
            "redis://host/2?s3cret@t",
            "redis://user:s3?cret=s3cret@host",
            "redis://s3cret?x@host",
            "redis://user:s3cret#2@host",
            "redis://host#s3cret",
            "redis://user:s3\tcret@host",
            "redis://host/2#s3cret",
            "unix:///run/redis.sock?pass=s3cret#2",
        ] {
            let error = Address::parse(url).err();
            let error = error.unwrap_or_else(|| panic!("{url:?} must be refused"));
            assert!(error.why.contains("%23"), "{url:?}: {error:?}");
            assert!(
                !format!("{error:?}").contains("s3cret"),
                "{url:?}: {error:?}"
            );
        }
        let encoded = "redis://user:a%2Fb%3Fc%23d%40e@host";
        let Ok(address) = Address::parse(encoded) else {
            panic!("the URL must be accepted");
        };
        assert_eq!(address.target.password.as_deref(), Some("a/b?c#d@e"));
    }

    #[test]
    fn error_about_a_mysql_or_zookeeper_url_names_the_crates_for_these_masters() {
        for url in [
            "mysql://user:s3cret@host/db",
            "mysqls://user:s3cret@host/db",
            "mysql+tls://user:s3cret@host/db",
            "postgres://user:s3cret@host/db",
            "zk://user:s3cret@host/path",
        ] {
            let error = Address::parse(url).err();
            let error = error.unwrap_or_else(|| panic!("{url:?} must be refused"));
            assert!(
                error
                    .why
                    .contains("quorate-mysql, quorate-postgres, quorate-zookeeper or quorate-etcd"),
                "{url:?}: {error:?}"
            );
            assert!(
                !format!("{error:?}").contains("s3cret"),
                "{url:?}: {error:?}"
            );
        }
    }

    #[test]
    fn addresses_with_different_databases_or_users_name_the_same_server() {
        let a = Address::parse("redis://LOCALHOST:7000/0").ok();
        let b = Address::parse("redis://user:pw@127.0.0.1:7000/3").ok();
        assert!(a.zip(b).is_some_and(|(a, b)| a.is_same_server(&b)));
    }

    /// The address that the `redis` crate reads from this URL; `None` if it refuses the URL.
    fn by_the_redis_crate(url: &str) -> Option<Target> {
        use redis::{ConnectionAddr, IntoConnectionInfo as _};
        let info = url.into_connection_info().ok()?;
        let settings = info.redis_settings();
        Some(Target {
            endpoint: match info.addr() {
                ConnectionAddr::Tcp(host, port) => Endpoint::Tcp(host.clone(), *port),
                ConnectionAddr::Unix(path) => Endpoint::Unix(path.clone()),
                _ => return None,
            },
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            database: settings.db(),
        })
    }

    proptest::proptest! {
        #[test]
        fn urls_are_read_as_by_the_redis_crate(
            scheme in "redis|unix|REDIS",
            login in "(([a%:]|%4[01]|%ff|\\PC){0,6}@)?",
            host in "h|10\\.0\\.0\\.1|0\\.0\\.0\\.0|\\[::1\\]|\\[::\\]|localhost|h%41|/run/s|\\PC{0,4}",
            port in "|:|:0|:1|:65535|:65536|:x",
            path in "|/|/2|/-2|/x|//3|/2/|/99999999999999999999",
            query in "|[?](db=2|db=x|user=a%40|pass=b&pass=c|x=1)",
        ) {
            let url = format!("{scheme}://{login}{host}{port}{path}{query}");
            let own_target = Target::parse(&url);
            proptest::prop_assert!(own_target == by_the_redis_crate(&url), "{}", url);
        }
    }

    #[cfg(feature = "redis")]
    mod of_a_client {
        use super::*;

        fn address_of_client(url: &str) -> Result<Address, BadAddress> {
            let client = redis::Client::open(url).expect("the URL must be valid");
            Address::from_client(client.get_connection_info())
        }

        #[test]
        fn address_of_a_redis_client_keeps_user_password_and_database() {
            let address = address_of_client("redis://user:s3cret@example.org:7000/2")
                .expect("the address must be accepted");
            assert_eq!(address.name().as_str(), "example.org:7000");
            assert_eq!(address.target.user.as_deref(), Some("user"));
            assert_eq!(address.target.password.as_deref(), Some("s3cret"));
            assert_eq!(address.target.database, 2);
            assert!(!address.tls);
            let socket =
                address_of_client("unix:///run/redis.sock").expect("the address must be accepted");
            assert_eq!(socket.name().as_str(), "/run/redis.sock");
        }

        fn over_tls(insecure: bool) -> Result<Address, BadAddress> {
            use redis::IntoConnectionInfo as _;
            let info = "redis://:s3cret@example.org".into_connection_info();
            let address = ConnectionAddr::TcpTls {
                host: "example.org".to_owned(),
                port: 6380,
                insecure,
                tls_params: None,
            };
            Address::from_client(&info.expect("the URL must be valid").set_addr(address))
        }

        #[cfg(feature = "tls-rustls")]
        #[test]
        fn redis_client_that_skips_tls_host_name_checks_is_refused_as_an_address() {
            let address = over_tls(false).expect("the address must be accepted");
            assert!(address.tls && address.wants_tls());
            assert_eq!(address.name().as_str(), "example.org:6380");
            assert_eq!(address.target.password.as_deref(), Some("s3cret"));
            let error = over_tls(true).err().expect("the address must be refused");
            assert!(
                error.why.contains("always checked"),
                "the error must give the reason: {error:?}"
            );
        }

        #[cfg(not(feature = "tls-rustls"))]
        #[test]
        fn tls_address_is_refused_without_the_feature_tls_rustls() {
            let error = over_tls(false).err().expect("the address must be refused");
            assert!(
                error.why.contains("tls-rustls"),
                "the error must name the feature: {error:?}"
            );
            assert_eq!(error.shown_address.as_deref(), Some("example.org:6380"));
        }
    }
}
