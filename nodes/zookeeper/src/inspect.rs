//! Inspects a ZooKeeper server or ensemble, for example for `quorate doctor`, over the same kind of session that a lock
//! uses.

use std::time::{Duration, Instant};

use quorate::Inspection;
use quorate::node::{Fault, NodeName, RoundTrip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::acl;
use crate::address::{Address, with_port};
use crate::dial::{MemberConnection, dial};
use crate::greet::{greet, probe_rights};
use crate::layout::Layout;

/// The number of round trips that are measured. The shortest one is reported.
const ROUND_TRIPS: usize = 3;
/// The largest `srvr` answer that is read, in bytes.
const LONGEST_ANSWER: u64 = 16_384;

pub(crate) async fn inspect(address: &Address, name: NodeName) -> Inspection {
    let mut inspection = Inspection::new(name);
    inspection.server = Some("zookeeper".to_owned());
    let started_at = Instant::now();
    let connection = match timeout(address.timeout, dial(address)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(fault)) => return with_fault(inspection, fault),
        Err(_) => return with_fault(inspection, Fault::Timeout(address.timeout)),
    };
    // Report the session, the version and the role even if the greeting has failed.
    let greeting_result = timeout(address.timeout, greet(&connection.client, address)).await;
    inspection.connecting = Some(started_at.elapsed());
    let session_timeout = connection.client.session_timeout();
    let session_text = humantime::format_duration(session_timeout).to_string();
    inspection
        .settings
        .push(("session".to_owned(), session_text));
    add_version_and_role(&mut inspection, &connection, address.timeout).await;
    match greeting_result.unwrap_or(Err(Fault::Timeout(address.timeout))) {
        Ok(names) => {
            inspection.identity = Some(names.server);
            inspection.run_id = Some(names.path);
        }
        Err(fault) => return with_fault(inspection, fault),
    }
    // Measure with writes, because only a write shows the leader's clock. The znodes get the ACL of the path.
    let records_path = Layout::new(address).records();
    let acl_result = timeout(
        address.timeout,
        acl::read_acl(&connection.client, &records_path, address),
    )
    .await;
    let acl = match acl_result.unwrap_or(Err(Fault::Timeout(address.timeout))) {
        Ok(acl) => acl,
        Err(fault) => return with_fault(inspection, fault),
    };
    inspection.wake_ups = true;
    for _ in 0..ROUND_TRIPS {
        let round_trip = RoundTrip::begin();
        let probe_result = timeout(
            address.timeout,
            probe_rights(&connection.client, address, &acl),
        )
        .await;
        match probe_result.unwrap_or(Err(Fault::Timeout(address.timeout))) {
            Ok(date) => {
                let leader_micros = date.and_then(|date| i64::try_from(date.micros).ok());
                inspection.add_round_trip(round_trip, leader_micros);
            }
            Err(fault) => return with_fault(inspection, fault),
        }
    }
    inspection
}

fn with_fault(mut inspection: Inspection, fault: Fault) -> Inspection {
    inspection.fault = Some(fault);
    inspection
}

/// Sends the command `srvr` to the member of the ensemble, and adds the version and the role that its answer contains.
/// Administrators may have disabled this command.
async fn add_version_and_role(
    inspection: &mut Inspection,
    connection: &MemberConnection,
    limit: Duration,
) {
    if let Ok(Ok(answer)) = timeout(limit, send_command(&connection.host, "srvr")).await {
        parse_srvr_answer(inspection, &answer);
    }
    if inspection.version.is_none() {
        let member_host = &connection.host;
        inspection.unseen.push(format!(
            "the version of {member_host}: set 4lw.commands.whitelist=srvr in the zoo.cfg of this server"
        ));
    }
}

fn parse_srvr_answer(inspection: &mut Inspection, answer: &str) {
    let value_of = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name));
    let safe_word = |text: &str| {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
        text.trim()
            .chars()
            .take_while(is_plain)
            .take(40)
            .collect::<String>()
    };
    inspection.version = value_of("Zookeeper version:").map(safe_word);
    inspection.role = value_of("Mode:").map(safe_word);
}

async fn send_command(host: &str, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(with_port(host)).await?;
    stream.write_all(command.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srvr_answer_is_parsed_and_stripped_of_control_characters() {
        let mut inspection = Inspection::new(NodeName::new("zk"));
        parse_srvr_answer(
            &mut inspection,
            "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023\nMode: \u{1b}[2Jleader\n",
        );
        assert_eq!(inspection.version.as_deref(), Some("3.8.0-"));
        assert_eq!(inspection.role.as_deref(), Some(""));
        parse_srvr_answer(&mut inspection, "Mode: follower\n");
        assert_eq!(inspection.role.as_deref(), Some("follower"));
        assert_eq!(inspection.version, None);
    }
}
