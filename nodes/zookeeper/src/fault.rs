//! Classifies ZooKeeper's errors as faults of a master.

use quorate::node::Fault;
use zookeeper_client::Error;

use crate::address::Address;

/// One row of the table of errors.
struct ErrorRow {
    /// The names of the errors in ZooKeeper's protocol, for the page.
    #[cfg_attr(not(test), allow(dead_code, reason = "only the page shows the names"))]
    errors: &'static str,
    fits: fn(&Error) -> bool,
    kind: FaultKind,
    /// The remedy, as the page shows it.
    remedy: &'static str,
}

/// The fault that an error becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Denied,
    Unprepared,
    ReadOnly,
    Busy,
    Unsupported,
    Server,
    Disconnected,
}

/// The first row that fits decides. The page `docs/refusals.md` shows these rows; a test compares them.
///
/// If only a change of the configuration helps, the fault is `Denied`, `Unsupported` or `Unprepared`: an acquire stops
/// waiting as soon as such faults make a majority impossible.
#[rustfmt::skip]
static ERROR_ROWS: [ErrorRow; 9] = [
    ErrorRow { errors: "NoAuth", fits: |error| matches!(error, Error::NoAuth), kind: FaultKind::Denied,
        remedy: "put a user with access to the path into the URL, or change the ACL of the path" },
    ErrorRow { errors: "AuthFailed, InvalidACL", fits: |error| matches!(error, Error::AuthFailed | Error::InvalidAcl),
        kind: FaultKind::Denied, remedy: "correct the user and the password in the URL" },
    ErrorRow { errors: "NoNode", fits: |error| matches!(error, Error::NoNode), kind: FaultKind::Unprepared,
        remedy: "run `quorate prepare-server URL`" },
    ErrorRow { errors: "NotReadOnly", fits: |error| matches!(error, Error::NotReadOnly), kind: FaultKind::ReadOnly,
        remedy: "wait until a majority of the ensemble runs" },
    ErrorRow { errors: "Throttled", fits: |error| matches!(error, Error::Throttled), kind: FaultKind::Busy,
        remedy: "wait until the ensemble is less busy" },
    ErrorRow { errors: "Unimplemented", fits: |error| matches!(error, Error::Unimplemented),
        kind: FaultKind::Unsupported, remedy: "use ZooKeeper 3.5 or newer" },
    ErrorRow { errors: "QuotaExceeded", fits: |error| matches!(error, Error::QuotaExceeded), kind: FaultKind::Server,
        remedy: "raise the quota of the path (setquota)" },
    ErrorRow { errors: "MarshallingError, BadArguments",
        fits: |error| matches!(error, Error::MarshallingError | Error::BadArguments(_)), kind: FaultKind::Server,
        remedy: "raise jute.maxbuffer" },
    ErrorRow { errors: "every other error", fits: |_| true, kind: FaultKind::Disconnected,
        remedy: "wait until a member of the ensemble answers" },
];

/// Classifies the error of a request as a fault of a master. `path` is the znode whose ACL applies: the parent znode if
/// the request creates or deletes a znode, otherwise the znode itself.
pub(crate) fn classify_request_error(error: &Error, path: &str, address: &Address) -> Fault {
    let row = ERROR_ROWS.iter().find(|row| (row.fits)(error));
    let (kind, remedy) = row.map_or((FaultKind::Disconnected, ""), |row| (row.kind, row.remedy));
    let fault_text = || format!("{error}: {remedy}").into();
    match kind {
        FaultKind::Denied if matches!(error, Error::NoAuth) => Fault::Denied(
            format!(
                "the ACL of the znode {path} does not permit this request by the user in the URL: {remedy}"
            )
            .into(),
        ),
        FaultKind::Denied => Fault::Denied(fault_text()),
        FaultKind::Unprepared => unprepared_fault(address),
        FaultKind::ReadOnly => Fault::ReadOnly,
        FaultKind::Busy => Fault::Busy,
        FaultKind::Unsupported => too_old_server(),
        FaultKind::Server => Fault::Server(fault_text()),
        // Treat every other error as a lost connection.
        FaultKind::Disconnected => Fault::Disconnected(error.to_string().into()),
    }
}

/// The fault of a server that was not prepared with `quorate prepare-server`.
pub(crate) fn unprepared_fault(address: &Address) -> Fault {
    let (path, url) = (&address.path, address.url());
    Fault::Unprepared(
        format!(
            "{path} is missing, or was not created by quorate: run `quorate prepare-server {url}`"
        )
        .into(),
    )
}

pub(crate) fn too_old_server() -> Fault {
    Fault::Unsupported("a lock needs ZooKeeper 3.5 or newer".into())
}

/// The fault of a server whose session timeout is too short for the request timeout.
pub(crate) fn short_session_fault(granted: std::time::Duration, address: &Address) -> Fault {
    let granted_text = humantime::format_duration(granted);
    let timeout = humantime::format_duration(address.timeout);
    Fault::Unsupported(
        format!(
            "the server limits session timeouts to {granted_text}, which is too short for the request timeout \
             {timeout}: raise maxSessionTimeout of the server, or lower ?timeout= in the URL"
        )
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address::parse("zk://127.0.0.1:2181/locks").expect("a URL")
    }

    /// An error for each name in the rows, except for the last row.
    fn error_named(name: &str) -> Error {
        match name {
            "NoAuth" => Error::NoAuth,
            "AuthFailed" => Error::AuthFailed,
            "InvalidACL" => Error::InvalidAcl,
            "NoNode" => Error::NoNode,
            "NotReadOnly" => Error::NotReadOnly,
            "Throttled" => Error::Throttled,
            "Unimplemented" => Error::Unimplemented,
            "QuotaExceeded" => Error::QuotaExceeded,
            "MarshallingError" => Error::MarshallingError,
            "BadArguments" => Error::BadArguments(&"x"),
            _ => Error::ConnectionLoss,
        }
    }

    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page.split_once("## ZooKeeper\n").expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows_of_page: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .collect();
        let mut rows_of_code = Vec::new();
        for row in &ERROR_ROWS {
            let faults: Vec<Fault> = row
                .errors
                .split(", ")
                .map(|name| classify_request_error(&error_named(name), "/x", &address()))
                .collect();
            let kind = faults[0].kind();
            assert!(
                faults.iter().all(|fault| fault.kind() == kind),
                "{}",
                row.errors
            );
            let passes_by_itself = faults[0].passes_by_itself();
            if !passes_by_itself {
                let (text, remedy) = (faults[0].to_string(), row.remedy.replace(" URL`", ""));
                let names_remedy = text.contains(&remedy) || text.contains("ZooKeeper 3.5");
                assert!(names_remedy, "{text}");
            }
            let is_waited_for = if passes_by_itself { "yes" } else { "no" };
            rows_of_code.push(format!(
                "| {} | {kind} | {is_waited_for} | {} |",
                row.errors, row.remedy
            ));
        }
        assert_eq!(
            rows_of_page,
            rows_of_code,
            "docs/refusals.md must show:\n{}",
            rows_of_code.join("\n")
        );
    }
}
