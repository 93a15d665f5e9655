//! `quorate page`: serves a live page of all locks for browsers, until a signal ends it.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use quorate::{Inspection, Redlock, RestartGuard, Settings};
use quorate_page::{
    DEFAULT_HISTORY_BYTES, DEFAULT_PORT, Finding, JudgeFn, Page, PageError, PageOptions, Password,
};

use crate::config::{self, MasterOptions, duration};
use crate::exit::{CommandResult, Failure, Meaning};
use crate::finding::{Rules, Severity};
use crate::findings::judge;
use crate::output;
use crate::process::interruptible;

/// How much of the file with the password is read, in bytes.
const MAX_PASSWORD_FILE: u64 = 64 * 1024;

/// The text below the options of `quorate page --help`.
pub(crate) const AFTER_HELP: &str = "\
The page shows which client holds which lock since when, which clients wait, the state of the masters, and a timeline of
the last 24 hours. It changes nothing: it shows commands to copy. Open the printed address in a browser.

The page asks the masters about every second while a browser watches, or all the time with --history. It takes at most
1 % of the time of a master: if there are many locks, it reads each of them less often. It does not see holds that are
shorter.

Only this machine can connect, unless --listen names another address. Then --password-file is needed: a file whose first
line is the password, and on which no other user has rights. The browser asks for the password; any user name fits. The
connection is not encrypted, so use a reverse proxy with TLS, and name the host of the proxy with --host.

With --history FILE, the page writes one JSON object per event to FILE, and reads FILE at its next start. At
--history-size, FILE is renamed to FILE.1. Each page needs a file of its own.

For programs: /api/state, /api/history?lock=ID&from=MS&to=MS, /api/events, /metrics and /healthz (docs/page.md).

Examples:
    quorate page
    quorate page --history /var/lib/quorate/history
    quorate page --listen 0.0.0.0:7272 --password-file /etc/quorate/page-password --host locks.example.com";

/// The exit codes of `quorate page`, with their meanings.
pub(crate) const CODES: [Meaning; 3] = [
    ("64", ""),
    (
        "70",
        "the address or the history file cannot be used, for example because another page uses it",
    ),
    ("128+n", "signal number n ended the page"),
];

/// Arguments of `page`.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Listen on this address: a port, or an IP address and a port [default: 127.0.0.1:7272]
    #[arg(long, value_name = "ADDRESS", env = "QUORATE_LISTEN", value_parser = listen_address)]
    listen: Option<SocketAddr>,

    /// Write the history to this file, and read it at the start
    #[arg(long, value_name = "FILE", env = "QUORATE_HISTORY")]
    history: Option<PathBuf>,

    /// The largest size of the history file, in MiB; a file of this size is renamed [default: 16]
    #[arg(long, value_name = "MIB", env = "QUORATE_HISTORY_SIZE", hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    history_size: Option<u64>,

    /// Ask browsers for the password in the first line of this file
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORATE_PASSWORD_FILE",
        conflicts_with = "no_password"
    )]
    password_file: Option<PathBuf>,

    /// Let every machine that can connect read the page, without a password
    #[arg(long, env = "QUORATE_NO_PASSWORD", value_parser = clap::builder::BoolishValueParser::new())]
    no_password: bool,

    /// A host name under which browsers reach the page, for example that of a reverse proxy; may be repeated
    #[arg(long, value_name = "NAME", env = "QUORATE_HOST", value_delimiter = ',')]
    host: Vec<String>,

    /// Show a wait that is at least this long as a problem [default: 1m]
    #[arg(long, value_name = "TIME", env = "QUORATE_SLOW_WAIT", hide_short_help = true, value_parser = duration)]
    slow_wait: Option<Duration>,

    /// Ask the masters this often, if they answer quickly [default: 1s]
    #[arg(long, value_name = "TIME", env = "QUORATE_INTERVAL", hide_short_help = true, value_parser = duration)]
    interval: Option<Duration>,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Serves the page until a signal arrives.
pub(crate) fn run(args: PageArgs) -> CommandResult {
    let (masters, _) = args.masters.clone().complete()?;
    let redlock = config::redlock(&masters, None)?;
    let mut options = args.options()?;
    options.judge = Some(judge_with(masters.settings().clone()));
    config::block_on(interruptible(serve(redlock, options), "the page ended"))
}

async fn serve(redlock: Redlock, options: PageOptions) -> CommandResult {
    let page = open(redlock, options).await?;
    output::print_message(format!("the page is at http://{}/", page.address()));
    page.serve().await;
    Err(Failure::internal("the page has ended"))
}

/// Listens, and opens the history file.
pub(crate) async fn open(redlock: Redlock, options: PageOptions) -> Result<Page, Failure> {
    Page::bind(redlock, options).await.map_err(|error| {
        let advice = match error {
            PageError::Listen { .. } => "; choose another address with --listen",
            _ => "",
        };
        Failure::internal(format!("{error}{advice}"))
    })
}

impl PageArgs {
    fn options(&self) -> Result<PageOptions, Failure> {
        let default = PageOptions::default();
        let options = PageOptions {
            listen: self.listen.unwrap_or(default.listen),
            hosts: self.host.clone(),
            password: self.password_file.as_ref().map(read_password).transpose()?,
            history: self.history.clone(),
            history_bytes: self
                .history_size
                .map_or(DEFAULT_HISTORY_BYTES, |mib| mib << 20),
            interval: self.interval.unwrap_or(default.interval),
            slow_wait: self.slow_wait.unwrap_or(default.slow_wait),
            percent: default.percent,
            judge: None,
        };
        if !quorate_page::is_loopback(&options.listen)
            && options.password.is_none()
            && !self.no_password
        {
            return Err(Failure::usage(format!(
                "other machines can connect to {}: give --password-file FILE, or --no-password if everybody may read \
                 the page",
                options.listen
            )));
        }
        Ok(options)
    }
}

fn read_password(path: &PathBuf) -> Result<Password, Failure> {
    let shown = quorate::redact::value(&path.to_string_lossy()).into_owned();
    let content = password_content(path)
        .map_err(|why| Failure::usage(format!("cannot read --password-file {shown}: {why}")))?;
    Password::from_file_content(&content).ok_or_else(|| {
        Failure::usage(format!(
            "--password-file {shown}: its first line, the password, is empty"
        ))
    })
}

/// The beginning of the file with the password. Fails if other users have rights on the file.
fn password_content(path: &PathBuf) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let file = File::open(path).map_err(text)?;
    let mode = file.metadata().map_err(text)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err("other users have rights on the file: run chmod 600 on it".to_owned());
    }
    let mut content = Vec::new();
    let mut beginning = file.take(MAX_PASSWORD_FILE);
    beginning.read_to_end(&mut content).map_err(text)?;
    Ok(content)
}

/// Parses an address to listen on: a port, or an IP address with a port.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, DEFAULT_PORT).into());
    }
    text.parse().map_err(|_| {
        "give a port, or an IP address and a port, for example 127.0.0.1:7272".to_owned()
    })
}

/// The checks of `quorate doctor` about single masters, for the page.
fn judge_with(settings: Settings) -> JudgeFn {
    Arc::new(move |inspections: &[Inspection]| {
        let rules = Rules {
            max_ttl: settings.max_ttl(),
            restart_guard: settings.restart_guard != Some(RestartGuard::Off),
            prefix: settings
                .prefix
                .as_ref()
                .is_some_and(|prefix| !prefix.is_empty()),
        };
        let kinds = crate::doctor::kinds(inspections.len(), &settings.masters);
        let findings = judge(inspections, &kinds, rules).into_iter();
        let shown = findings.filter_map(|finding| {
            let severity = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Note => return None,
            };
            Some(Finding {
                master: finding.master,
                severity,
                text: output::redact(&finding.what).into_owned(),
                advice: finding.advice,
            })
        });
        shown.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_to_listen_on_is_a_port_or_an_ip_address() {
        for (text, address) in [
            ("80", "127.0.0.1:80"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("::1", "[::1]:7272"),
            ("[::]:9", "[::]:9"),
        ] {
            assert_eq!(
                listen_address(text).map(|address| address.to_string()),
                Ok(address.to_owned())
            );
        }
        for text in ["", "localhost", "localhost:80", "1.2.3.4:x", "99999"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }
}
