//! Inspects a cluster, for example for `quorate doctor`, over the same kind of connection that a lock uses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::Inspection;
use quorate::node::{Fault, NodeName, RoundTrip};
use serde_json::{Value, json};

use crate::fault::plain;
use crate::greet::{TXN, greet};
use crate::json;
use crate::layout::IDENTITY_KEY;
use crate::member::{Member, Shared, header};
use crate::txn;

/// The time limit of the whole inspection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of round trips that are measured. The duration of the fastest one is reported.
const TRIPS: usize = 5;
/// A history that is longer than this number of revisions is reported as long.
const LONG_HISTORY: u64 = 1_000_000;
/// The metrics that are read, as pairs of their names in the report and at the member.
const METRICS: [(&str, &str); 2] = [
    ("quota_bytes", "etcd_server_quota_backend_bytes "),
    ("slow_applies", "etcd_server_slow_apply_total "),
];

pub(crate) async fn inspect(name: &NodeName, shared: &Arc<Shared>) -> Inspection {
    let mut found = Inspection::new(name.clone());
    let inspecting = tokio::time::timeout(PATIENCE, examine(shared, &mut found));
    found.fault = match inspecting.await {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_) => Some(Fault::Timeout(PATIENCE)),
    };
    found
}

async fn examine(shared: &Arc<Shared>, found: &mut Inspection) -> Result<(), Fault> {
    let began = Instant::now();
    let mut member = Member::open(shared).await?;
    found.server = Some("etcd".to_owned());
    let members = member_count(&mut member).await?;
    status(&member.status, members, found);
    metrics(&mut member, found).await?;
    alarms(&mut member, found).await?;
    let met = greet(&mut member).await?;
    found.connecting = Some(began.elapsed());
    found.run_id = Some(met.name());
    found.identity = Some(met.name());
    history(&mut member, found).await?;
    measure(&mut member, found).await?;
    found.wake_ups = true;
    Ok(())
}

fn set(found: &mut Inspection, name: &str, value: impl ToString) {
    found.settings.push((name.to_owned(), value.to_string()));
}

/// Adds the version, the role and the sizes of the database.
fn status(status: &Value, members: Option<usize>, found: &mut Inspection) {
    found.version = Some(plain(json::text(status, "version")));
    let leader = json::number(status, "leader");
    let own = status
        .get("header")
        .and_then(|header| json::number(header, "member_id"));
    let role = match members {
        Some(1) => "standalone",
        _ if leader == own => "leader",
        _ => "follower",
    };
    found.role = Some(role.to_owned());
    for (name, field) in [("db_bytes", "dbSize"), ("db_bytes_in_use", "dbSizeInUse")] {
        if let Some(size) = json::number(status, field) {
            set(found, name, size);
        }
    }
    if let Some(members) = members {
        set(found, "members", members);
    }
}

/// The number of members of the cluster; `None` if the user may not read it.
async fn member_count(member: &mut Member) -> Result<Option<usize>, Fault> {
    let outcome = member.ask("/v3/cluster/member/list", &json!({})).await?;
    let count = |body: &Value| json::list(body, "members").len();
    Ok(outcome.ok().map(|answer| count(&answer.body)))
}

/// Adds the quota of the database.
async fn metrics(member: &mut Member, found: &mut Inspection) -> Result<(), Fault> {
    let page = member.page("/metrics").await?.unwrap_or_default();
    for (name, metric) in METRICS {
        let value = page.lines().find_map(|line| line.strip_prefix(metric));
        let value: Option<f64> = value.and_then(|value| value.trim().parse().ok());
        if let Some(value) = value.filter(|value| (0.0..1e18).contains(value)) {
            set(found, name, value as u64);
        }
    }
    if found.setting("quota_bytes").is_none() {
        let hint = "the quota of the database: allow this machine to read /metrics of the member";
        found.unseen.push(hint.to_owned());
    }
    Ok(())
}

/// Adds the alarms of the cluster, such as `NOSPACE`.
async fn alarms(member: &mut Member, found: &mut Inspection) -> Result<(), Fault> {
    let request = json!({"action": "GET"});
    if let Ok(answer) = member.ask("/v3/maintenance/alarm", &request).await? {
        let alarms = json::list(&answer.body, "alarms").iter();
        let names: Vec<String> = alarms
            .map(|alarm| plain(json::text(alarm, "alarm")))
            .collect();
        set(found, "alarms", names.join(" "));
    } else {
        let hint = "the alarms of the cluster: run `etcdctl alarm list` as root";
        found.unseen.push(hint.to_owned());
    }
    Ok(())
}

/// Adds how long the history is that the cluster keeps.
async fn history(member: &mut Member, found: &mut Inspection) -> Result<(), Fault> {
    let request = json!({"key": json::encode(IDENTITY_KEY)});
    let answer = member.call("/v3/kv/range", &request).await?;
    let (_, revision) = header(&answer.body)?;
    set(found, "revision", revision);
    let history = if is_kept(member, 1).await? {
        "whole"
    } else {
        let long = revision.saturating_sub(LONG_HISTORY);
        let is_long = long > 1 && is_kept(member, long).await?;
        if is_long { "long" } else { "compacted" }
    };
    set(found, "history", history);
    Ok(())
}

/// Whether the cluster still has the state of this revision.
async fn is_kept(member: &mut Member, revision: u64) -> Result<bool, Fault> {
    let request = json!({
        "key": json::encode(IDENTITY_KEY),
        "revision": revision.to_string(),
        "keys_only": true,
    });
    match member.ask("/v3/kv/range", &request).await? {
        Ok(_) => Ok(true),
        Err(refusal) if refusal.is_compacted() => Ok(false),
        Err(refusal) => Err(refusal.fault()),
    }
}

/// Measures the fastest round trip of a write that changes nothing, and reads the member's clock in that round trip.
async fn measure(member: &mut Member, found: &mut Inspection) -> Result<(), Fault> {
    let probe = txn::probe(&member.shared.address.layout());
    for _ in 0..TRIPS {
        let round_trip = RoundTrip::begin();
        let answer = member.call(TXN, &probe).await?;
        // The date is rounded down to a whole second, so its middle is half a second later.
        let date = answer.date.and_then(|date| i64::try_from(date).ok());
        found.add_round_trip(round_trip, date.map(|date| date.saturating_add(500_000)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_and_sizes_are_read_from_the_status() {
        let body = json!({
            "header": {"member_id": "7"}, "version": "3.4.23", "dbSize": "100", "dbSizeInUse": "50", "leader": "7",
        });
        for (members, leader, role) in [
            (Some(1), "7", "standalone"),
            (Some(3), "7", "leader"),
            (Some(3), "8", "follower"),
            (None, "7", "leader"),
        ] {
            let mut body = body.clone();
            body["leader"] = leader.into();
            let mut found = Inspection::new(NodeName::new("etcd"));
            status(&body, members, &mut found);
            assert_eq!(found.role.as_deref(), Some(role));
            assert_eq!(found.version.as_deref(), Some("3.4.23"));
            assert_eq!(found.setting("db_bytes_in_use"), Some("50"));
        }
    }
}
