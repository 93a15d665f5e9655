//! The output of `quorate masters status`: the masters, and the clients that are connected to them.

use std::collections::BTreeMap;

use quorate::{ChangeStage, ClientKind, ClientSeen, MasterSeen, Survey};
use serde::Serialize;

use crate::output::{self, Cell, YELLOW};

/// The output of `quorate masters status --json`.
#[derive(Debug, Serialize)]
pub(crate) struct SurveyStatus {
    /// The stage of the replacement of `masters` by `next_masters`: the name of a [`ChangeStage`]. `None` if
    /// `next_masters` is not set.
    stage: Option<&'static str>,
    /// The step number of this command's configuration (see docs/protocol.md, "Replacing masters"): twice the setting
    /// `masters_generation`, plus 1 if `next_masters` is set.
    step: u64,
    masters: Vec<MasterRow>,
    clients: Vec<ClientRow>,
}

/// One master in the JSON form. Values that are not known are `None`.
#[derive(Debug, Serialize)]
struct MasterRow {
    /// The address of the master, without credentials.
    master: String,
    /// The set that the master belongs to: `old`, `next` or `both`. `None` if `next_masters` is not set.
    set: Option<&'static str>,
    /// The generation marker that the master stores (see docs/protocol.md, "Generation markers"); `None` if it stores
    /// none, or if it could not be read.
    mark: Option<String>,
    uptime_s: Option<u64>,
    run_id: Option<String>,
    /// Why the state of this master is unknown or incomplete, as text; `None` if there is no error.
    error: Option<String>,
    error_kind: Option<&'static str>,
}

/// One client, with its connections to all masters.
#[derive(Debug, Serialize)]
struct ClientRow {
    /// The step of the client's configuration (see [`SurveyStatus`]); `None` if the client does not check generation
    /// markers.
    step: Option<u64>,
    /// How the client's configuration differs from the configuration of this command:
    ///
    /// - `other_masters`: different masters, or different names for the same masters
    /// - `current`: the same masters and the same step
    /// - `outdated`: the client's step is lower
    /// - `ahead`: the client's step is higher
    /// - `without_marker`: the client's step is unknown, because it ignores the generation markers on the masters
    /// - `unknown`: not a client of quorate
    state: &'static str,
    host: Option<String>,
    pid: Option<u32>,
    /// The name that the client gave its connections.
    name: String,
    connections: Vec<Connection>,
}

/// One connection of a client.
#[derive(Debug, Serialize)]
struct Connection {
    /// The address of the master, without credentials.
    master: String,
    /// The address of the client, as the master sees it.
    address: String,
}

impl SurveyStatus {
    pub(crate) fn new(survey: &Survey) -> Self {
        let masters = survey.masters.iter();
        Self {
            stage: survey.is_change().then(|| stage_name(survey.stage())),
            step: survey.step(),
            masters: masters
                .map(|master| MasterRow::new(master, survey.is_change()))
                .collect(),
            clients: client_rows(survey),
        }
    }
}

impl MasterRow {
    fn new(master: &MasterSeen, is_change: bool) -> Self {
        let state = &master.seen;
        let fault = state.fault.as_ref();
        Self {
            master: master.node.to_string(),
            set: set_name(master, is_change),
            mark: state.mark.clone(),
            uptime_s: state.uptime.map(|uptime| uptime.as_secs()),
            run_id: state.run_id.clone(),
            error: fault.map(|fault| output::redact(&fault.to_string()).into_owned()),
            error_kind: fault.map(quorate::Fault::kind),
        }
    }
}

/// The name of the set that a master belongs to; `None` if `next_masters` is not set.
pub(crate) fn set_name(master: &MasterSeen, is_change: bool) -> Option<&'static str> {
    match (master.is_old, master.is_next) {
        (true, true) => Some("both"),
        (false, true) => Some("next"),
        _ => is_change.then_some("old"),
    }
}

fn stage_name(stage: ChangeStage) -> &'static str {
    match stage {
        ChangeStage::Untouched => "untouched",
        ChangeStage::Begun => "begun",
        ChangeStage::PartlyClosed => "partly_closed",
        ChangeStage::Closed => "closed",
        ChangeStage::Open => "open",
        ChangeStage::Finished => "finished",
        _ => "unknown",
    }
}

/// The connected clients, ordered by the steps of their configurations (see [`SurveyStatus`]). Clients whose step is
/// unknown are last.
///
/// A row contains all connections of one process. A connection whose name contains no process id has its own row.
fn client_rows(survey: &Survey) -> Vec<ClientRow> {
    let mut rows: BTreeMap<_, ClientRow> = BTreeMap::new();
    for master in &survey.masters {
        for client in &master.seen.clients {
            let (step, state) = step_and_state(client, survey);
            let connection_key = client.pid.is_none().then_some((&master.node, client.id));
            let order = (step.is_none(), step, state, &client.name, connection_key);
            let row = rows.entry(order).or_insert_with(|| ClientRow {
                step,
                state,
                host: client.host.clone(),
                pid: client.pid,
                name: client.name.clone(),
                connections: Vec::new(),
            });
            row.connections.push(Connection {
                master: master.node.to_string(),
                address: client.address.clone(),
            });
        }
    }
    rows.into_values().collect()
}

/// Returns the `step` and the `state` of a client's row (see [`ClientRow`]).
fn step_and_state(client: &ClientSeen, survey: &Survey) -> (Option<u64>, &'static str) {
    match client.kind {
        ClientKind::AtStep(step, _) => {
            let state = match step.cmp(&survey.step()) {
                _ if survey.is_of_other_masters(client) => "other_masters",
                std::cmp::Ordering::Less => "outdated",
                std::cmp::Ordering::Equal => "current",
                std::cmp::Ordering::Greater => "ahead",
            };
            (Some(step), state)
        }
        ClientKind::Untold => (None, "without_marker"),
        ClientKind::Unknown => (None, "unknown"),
    }
}

/// The table of the connected clients for people; empty if there are none.
pub(crate) fn clients_table(survey: &Survey) -> String {
    let clients = client_rows(survey);
    if clients.is_empty() {
        return String::new();
    }
    let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
    let row = |client: &ClientRow| {
        let state = match client.state {
            "current" => Cell::from("current"),
            state => Cell::styled(state.replace('_', " "), YELLOW),
        };
        let name_text =
            (!client.name.is_empty()).then(|| output::printable(client.name.as_bytes()));
        let addresses = client
            .connections
            .iter()
            .map(|connection| connection.address.as_str());
        vec![
            or_dash(client.step.map(|step| step.to_string())),
            state,
            or_dash(client.host.clone()),
            or_dash(client.pid.map(|pid| pid.to_string())),
            or_dash(name_text),
            addresses.collect::<Vec<_>>().join(" ").into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = clients.iter().map(row).collect();
    let heading = ["STEP", "STATE", "HOST", "PID", "NAME", "ADDRESSES"];
    format!("\n{}", output::table(&heading, &rows))
}
