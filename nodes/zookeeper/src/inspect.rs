//! Inspects a ZooKeeper server or ensemble, for example for `quorate doctor`, over the same kind of session that a lock
//! uses.

use std::time::{Duration, Instant, SystemTime};

use quorate::Inspection;
use quorate::node::{Fault, NodeName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::acl;
use crate::address::{Address, with_port};
use crate::dial::{Dialled, dial};
use crate::greet::{date, greet};
use crate::layout::Layout;

/// The number of round trips that are measured. The shortest one is reported.
const ROUNDS: usize = 3;
/// The largest `srvr` answer that is read, in bytes.
const LONGEST: u64 = 16_384;

pub(crate) async fn inspect(address: &Address, name: NodeName) -> Inspection {
    let mut found = Inspection::new(name);
    found.server = Some("zookeeper".to_owned());
    let begun = Instant::now();
    let dialled = match timeout(address.timeout, dial(address)).await {
        Ok(Ok(dialled)) => dialled,
        Ok(Err(fault)) => return with(found, fault),
        Err(_) => return with(found, Fault::Timeout(address.timeout)),
    };
    // Report the session, the version and the role even if the greeting has failed.
    let greeted = timeout(address.timeout, greet(&dialled.client, address)).await;
    found.connecting = Some(begun.elapsed());
    let session = dialled.client.session_timeout();
    let session = humantime::format_duration(session).to_string();
    found.settings.push(("session".to_owned(), session));
    say(&mut found, &dialled, address.timeout).await;
    match greeted.unwrap_or(Err(Fault::Timeout(address.timeout))) {
        Ok(identity) => {
            found.identity = Some(identity.clone());
            found.run_id = Some(identity);
        }
        Err(fault) => return with(found, fault),
    }
    // Measure with writes, because only a write shows the leader's clock. The znodes get the ACL of the path.
    let records = Layout::new(address).records();
    let read = timeout(
        address.timeout,
        acl::read(&dialled.client, &records, address),
    )
    .await;
    let acl = match read.unwrap_or(Err(Fault::Timeout(address.timeout))) {
        Ok(acl) => acl,
        Err(fault) => return with(found, fault),
    };
    found.wake_ups = true;
    for _ in 0..ROUNDS {
        let (begun, wall) = (Instant::now(), SystemTime::now());
        let written = timeout(address.timeout, date(&dialled.client, address, &acl)).await;
        match written.unwrap_or(Err(Fault::Timeout(address.timeout))) {
            Ok(date) => {
                let took = begun.elapsed();
                // The leader read its clock in between, so compare it with the middle of the round trip.
                let ours = (wall + took / 2).duration_since(SystemTime::UNIX_EPOCH);
                if let (Some(date), Ok(ours)) = (date, ours) {
                    let ours = i64::try_from(ours.as_millis()).unwrap_or(i64::MAX);
                    let leader = i64::try_from(date.micros / 1_000).unwrap_or(i64::MAX);
                    found.clock_offset_ms = Some(leader.saturating_sub(ours));
                }
                found.round_trip = Some(found.round_trip.map_or(took, |least| least.min(took)));
            }
            Err(fault) => return with(found, fault),
        }
    }
    found
}

fn with(mut found: Inspection, fault: Fault) -> Inspection {
    found.fault = Some(fault);
    found
}

/// Sends the command `srvr` to the member of the ensemble, and adds the version and the role that its answer contains.
/// Administrators may have disabled this command.
async fn say(found: &mut Inspection, dialled: &Dialled, within: Duration) {
    if let Ok(Ok(said)) = timeout(within, ask(&dialled.host, "srvr")).await {
        read(found, &said);
    }
    if found.version.is_none() {
        let member = &dialled.host;
        found.unseen.push(format!(
            "the version of {member}: set 4lw.commands.whitelist=srvr in the zoo.cfg of this server"
        ));
    }
}

fn read(found: &mut Inspection, said: &str) {
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let word = |text: &str| {
        let plain = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
        text.trim()
            .chars()
            .take_while(plain)
            .take(40)
            .collect::<String>()
    };
    found.version = value("Zookeeper version:").map(word);
    found.role = value("Mode:").map(word);
}

async fn ask(host: &str, word: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(with_port(host)).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut said = Vec::new();
    stream.take(LONGEST).read_to_end(&mut said).await?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srvr_answer_is_parsed_and_stripped_of_control_characters() {
        let mut found = Inspection::new(NodeName::new("zk"));
        read(
            &mut found,
            "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023\nMode: \u{1b}[2Jleader\n",
        );
        assert_eq!(found.version.as_deref(), Some("3.8.0-"));
        assert_eq!(found.role.as_deref(), Some(""));
        read(&mut found, "Mode: follower\n");
        assert_eq!(found.role.as_deref(), Some("follower"));
        assert_eq!(found.version, None);
    }
}
