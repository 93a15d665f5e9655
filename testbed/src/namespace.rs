//! Network namespaces. Each namespace puts one server behind a network link of its own, which a test can take down.
//!
//! While a link is down, connection attempts get no answer at all, as if a cable had been pulled. A
//! [`Proxy`](crate::Proxy) cannot simulate this, because the kernel accepts every connection to the proxy.
//!
//! [`isolate`] restarts the program in an outer namespace that has only a loopback interface. The servers' namespaces
//! are created inside it:
//!
//! - No packet can leave the machine.
//! - No other program uses the same addresses.
//! - The kernel removes a namespace when its last process ends, so no cleanup is needed.
//!
//! Needs Linux, and either root or a kernel that allows unprivileged user namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// The environment variable that [`isolate`] sets for the program that it restarts.
const ISOLATED_VARIABLE: &str = "QUORATE_ISOLATED";
/// The interface at the program's end of a network link is named with this prefix and the number of the link.
const LINK_PREFIX: &str = "qv";
/// The name of the interface at the server's end of a link.
const PEER: &str = "wire";

/// A network namespace and the link to it. Dropping the value removes both.
#[derive(Debug)]
pub struct Namespace {
    /// A helper process in the namespace, so that the namespace exists even if no server runs in it. The helper exits
    /// when its standard input is closed.
    holder: Child,
    link: String,
    address: Ipv4Addr,
}

impl Namespace {
    /// Creates a namespace with its link up. The program must have called [`isolate`] before.
    ///
    /// # Errors
    ///
    /// If the operating system does not allow new namespaces, or if this program has not called [`isolate`], so that it
    /// can reach networks other than loopback.
    pub fn create() -> io::Result<Self> {
        static NEXT_NUMBER: AtomicU16 = AtomicU16::new(0);
        if !is_isolated() {
            return Err(io::Error::other(
                "this program can reach networks other than loopback: call isolate() before create()",
            ));
        }
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) % (1 << 14);
        // Each link has a network of four addresses: 10.203.0.0/30, 10.203.0.4/30, and so on.
        let network = u32::from(Ipv4Addr::new(10, 203, 0, 0)) + u32::from(number) * 4;
        let (our_address, address) = (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2));
        let holder_process = Command::new("unshare")
            .args([
                "--net",
                "sh",
                "-c",
                "ip link set lo up && echo up && exec cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let link = format!("{LINK_PREFIX}{number}");
        let mut namespace = Self {
            holder: holder_process,
            link: link.clone(),
            address,
        };
        let mut first_line = String::new();
        if let Some(stdout) = namespace.holder.stdout.take() {
            BufReader::new(stdout).read_line(&mut first_line)?;
        }
        if first_line.trim() != "up" {
            let reason = "the network namespace could not be created";
            return Err(io::Error::other(reason));
        }
        let pid = namespace.holder.id().to_string();
        run(
            "ip",
            &[
                "link", "add", &link, "type", "veth", "peer", "name", PEER, "netns", &pid,
            ],
        )?;
        let with_mask = format!("{our_address}/30");
        run("ip", &["addr", "add", &with_mask, "dev", &link])?;
        run("ip", &["link", "set", "dev", &link, "up"])?;
        namespace.run_inside(&["ip", "addr", "add", &format!("{address}/30"), "dev", PEER])?;
        // Add a permanent ARP entry for the server. Without it, the kernel would report "unreachable" while the link is
        // down. With it, clients get no answer at all.
        let mac_address = namespace.run_inside(&["ip", "-brief", "link", "show", "dev", PEER])?;
        let mac_address = mac_address.split_whitespace().nth(2).unwrap_or_default();
        let peer = address.to_string();
        run(
            "ip",
            &[
                "neigh",
                "replace",
                &peer,
                "lladdr",
                mac_address,
                "dev",
                &link,
                "nud",
                "permanent",
            ],
        )?;
        namespace.mend()?;
        Ok(namespace)
    }

    /// The address of a server inside the namespace.
    pub fn addr(&self) -> Ipv4Addr {
        self.address
    }

    /// Takes the link down: packets vanish in both directions. Does nothing if the link is already down.
    ///
    /// # Errors
    ///
    /// If the operating system refuses the change.
    pub fn sever(&self) -> io::Result<()> {
        // Take down the server's end of the link, so that packets of the program vanish. If the program's end were
        // down, sending a packet would fail with an error instead.
        self.run_inside(&["ip", "link", "set", "dev", PEER, "down"])
            .map(drop)
    }

    /// Brings the link up again. Open connections continue, because TCP retransmits the lost packets.
    ///
    /// # Errors
    ///
    /// If the operating system refuses the change.
    pub fn mend(&self) -> io::Result<()> {
        self.run_inside(&["ip", "link", "set", "dev", PEER, "up"])
            .map(drop)
    }

    /// The program and the arguments to put in front of a command, so that the command runs inside the namespace.
    pub(crate) fn enter_command(&self) -> [String; 3] {
        let net = format!("--net=/proc/{}/ns/net", self.holder.id());
        ["nsenter".to_owned(), net, "--".to_owned()]
    }

    fn run_inside(&self, command: &[&str]) -> io::Result<String> {
        let [program, net_option, separator] = self.enter_command();
        run(
            &program,
            &[&[net_option.as_str(), separator.as_str()], command].concat(),
        )
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run("ip", &["link", "del", "dev", &self.link]);
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Whether this program can reach only loopback and the links that it created.
fn is_isolated() -> bool {
    fs::read_to_string("/proc/self/net/route").is_ok_and(|routes| {
        let mut routes = routes.lines().skip(1);
        routes.all(|route| route.starts_with(LINK_PREFIX))
    })
}

/// Checks whether this machine allows isolation: whether [`isolate`] would work or, if the program is already isolated,
/// whether [`Namespace::create`] works.
///
/// # Errors
///
/// The reason why the check failed.
pub fn check_isolation() -> Result<(), String> {
    if is_isolated() {
        let namespace = Namespace::create().map_err(|error| error.to_string())?;
        drop(namespace);
        return Ok(());
    }
    unshare_options().map(drop)
}

/// Restarts this program, with the same arguments and process id, in a new network namespace that has only a loopback
/// interface. Does nothing if the program is already isolated. Call it before the program does anything else.
///
/// # Errors
///
/// The reason why isolation is not possible. Nothing is changed in that case.
pub fn isolate() -> Result<(), String> {
    if std::env::var_os(ISOLATED_VARIABLE).is_some() || is_isolated() {
        return Ok(());
    }
    let options = unshare_options()?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let error = Command::new("unshare")
        .args(options)
        .args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(ISOLATED_VARIABLE, "1")
        .exec();
    Err(format!("unshare: {error}"))
}

/// Returns arguments with which `unshare` can create a network namespace on this machine. Without root, they also
/// create a user namespace.
fn unshare_options() -> Result<&'static [&'static str], String> {
    const OPTION_SETS: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];
    // This shell script tries each kind of command with which this module creates namespaces and links.
    const TEST_SCRIPT: &str = "ip link set lo up && unshare --net true && nsenter --net=/proc/self/ns/net true \
                       && ip link add qv0 type veth peer name wire";
    let mut last_error = String::new();
    for options in OPTION_SETS {
        match run("unshare", &[options, &["sh", "-c", TEST_SCRIPT]].concat()) {
            Ok(_) => return Ok(options),
            Err(error) => last_error = error.to_string(),
        }
    }
    Err(format!(
        "this machine does not allow network namespaces: {last_error}"
    ))
}

fn run(program: &str, args: &[impl AsRef<OsStr>]) -> io::Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program}: {}", message.trim())))
}
