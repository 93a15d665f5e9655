//! Classifies ZooKeeper's errors as faults of a master.

use quorate::node::Fault;
use zookeeper_client::Error;

use crate::address::Address;

/// Classifies the error of a request as a fault of a master. `path` is the znode whose ACL applies: the parent znode if
/// the request creates or deletes a znode, otherwise the znode itself.
pub(crate) fn of_request(error: &Error, path: &str, address: &Address) -> Fault {
    match error {
        Error::NoAuth => Fault::Denied(
            format!(
                "the ACL of the znode {path} does not permit this request by the user in the URL"
            )
            .into(),
        ),
        Error::AuthFailed | Error::InvalidAcl => Fault::Denied(error.to_string().into()),
        Error::NoNode => unprepared(address),
        Error::NotReadOnly => Fault::ReadOnly,
        Error::Throttled => Fault::Busy,
        Error::Unimplemented => too_old(),
        Error::QuotaExceeded | Error::MarshallingError | Error::BadArguments(_) => {
            Fault::Server(error.to_string().into())
        }
        // Treat every other error as a lost connection.
        _ => Fault::Disconnected(error.to_string().into()),
    }
}

/// The fault of a server that was not prepared with `quorate prepare-server`.
pub(crate) fn unprepared(address: &Address) -> Fault {
    let (path, url) = (&address.path, address.url());
    Fault::Unprepared(
        format!(
            "{path} is missing, or was not created by quorate: run `quorate prepare-server {url}`"
        )
        .into(),
    )
}

pub(crate) fn too_old() -> Fault {
    Fault::Unsupported("a lock needs ZooKeeper 3.5 or newer".into())
}

/// The fault of a server whose session timeout is too short for the request timeout.
pub(crate) fn short_session(granted: std::time::Duration, address: &Address) -> Fault {
    let granted = humantime::format_duration(granted);
    let timeout = humantime::format_duration(address.timeout);
    Fault::Unsupported(
        format!(
            "the server limits session timeouts to {granted}, which is too short for the request timeout {timeout}: \
                 raise maxSessionTimeout of the server, or lower ?timeout= in the URL"
        )
        .into(),
    )
}
