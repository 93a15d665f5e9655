//! The first requests of a session: they read the ensemble's name, and test the client's rights.

use quorate::node::Fault;
use quorate::node::store::Date;
use zookeeper_client::{
    Acl, Acls, Client, CreateMode, Error, MultiWriteResult, MultiWriter, SessionId, Stat,
};

use crate::address::Address;
use crate::fault;
use crate::layout::{Layout, SERVER_NAME_PATH, random_name};

/// The names by which an ensemble identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The name of the path. It changes only if the path is prepared again.
    pub(crate) path: String,
    /// The name of the ensemble: the same for all of its paths, unless no user may create `/quorate-server`.
    pub(crate) server: String,
}

/// Synchronizes the member with the ensemble's leader, and reads the names of the ensemble.
pub(crate) async fn greet(client: &Client, address: &Address) -> Result<Names, Fault> {
    let layout = Layout::new(address);
    let path = layout.identity();
    let (sync_result, own_result, shared_result) = futures::join!(
        client.sync(layout.root()),
        client.get_data(&path),
        client.get_data(SERVER_NAME_PATH)
    );
    let synced_result = sync_result.and(own_result);
    let (own_data, _) =
        synced_result.map_err(|error| fault::classify_request_error(&error, &path, address))?;
    let own_name = parse_name(own_data).ok_or_else(|| fault::unprepared_fault(address))?;
    // Prefer the name in `/quorate-server`, because all paths of the ensemble share it.
    let shared_name = match shared_result {
        Ok((data, _)) => parse_name(data),
        Err(Error::NoNode | Error::NoAuth) => None,
        Err(error) => {
            return Err(fault::classify_request_error(
                &error,
                SERVER_NAME_PATH,
                address,
            ));
        }
    };
    Ok(Names {
        server: shared_name.unwrap_or_else(|| own_name.clone()),
        path: own_name,
    })
}

/// The name of an ensemble as it is stored in a znode; `None` if the data is not a name.
fn parse_name(data: Vec<u8>) -> Option<String> {
    let name = String::from_utf8(data).ok()?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then_some(name)
}

/// Tests the rights that a lock needs: creates, writes and removes a znode with the ACL `acl`, in one transaction.
///
/// Returns the timestamp of the transaction, or `None` if the ensemble returned none.
pub(crate) async fn probe_rights(
    client: &Client,
    address: &Address,
    acl: &[Acl],
) -> Result<Option<Date>, Fault> {
    let records_path = Layout::new(address).records();
    let path = format!("{records_path}/probe-{}", random_name());
    let classify = |error: &Error| fault::classify_request_error(error, &records_path, address);
    let mut writer = client.new_multi_writer();
    add_probe(&mut writer, acl, &path).map_err(|error| classify(&error))?;
    let commit_result = writer.commit().await;
    let results = commit_result.map_err(|error| classify(&Error::from(error)))?;
    Ok(date_of_results(&results, client.session_id()))
}

fn add_probe(writer: &mut MultiWriter<'_>, acl: &[Acl], path: &str) -> Result<(), Error> {
    let options = CreateMode::Persistent.with_acls(Acls::new(acl));
    writer.add_create(path, b"", &options)?;
    // Also write the znode, because some servers return no timestamp for the creation of a znode.
    writer.add_set_data(path, b"", None)?;
    writer.add_delete(path, None)
}

/// The timestamp of a transaction of `session`, taken from the results of its operations. `None` if no result contains
/// a timestamp.
pub(crate) fn date_of_results(results: &[MultiWriteResult], session: SessionId) -> Option<Date> {
    results.iter().find_map(|result| match result {
        MultiWriteResult::SetData { stat } | MultiWriteResult::Create { stat, .. } => {
            date_of_change(stat, session)
        }
        _ => None,
    })
}

/// The time of the last change of a znode (`mtime`); `None` if the znode has no `mtime`.
///
/// The clock of the ensemble's leader gives this time. The upper half of the change's id (`mzxid`) is the number of the
/// leader's term of office.
pub(crate) fn date_of_change(stat: &Stat, session: SessionId) -> Option<Date> {
    let era = server_era(stat.mzxid, session);
    Some(Date::new(mtime_micros(stat.mtime)?, era))
}

/// Identifies the server process that gave a change the id `mzxid`.
///
/// A server without an ensemble has no leader: the term stays 0 when it restarts. Its sessions are numbered from the
/// time of its start, and the lowest 16 bits count them. So the other bits identify the process, until it has opened
/// 65536 sessions.
fn server_era(mzxid: i64, session: SessionId) -> u64 {
    match mzxid.cast_unsigned() >> 32 {
        0 => session.0.cast_unsigned() >> 16,
        term => term,
    }
}

/// Converts an `mtime` in milliseconds to microseconds; `None` if it is not after 1970, or too large.
fn mtime_micros(mtime: i64) -> Option<u64> {
    let millis = u64::try_from(mtime).ok();
    millis.filter(|millis| *millis > 0)?.checked_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn era_of_a_server_without_an_ensemble_changes_with_its_process() {
        let session = |number| SessionId(number);
        let (first, second) = (0x0100_000b_5e1d_0000, 0x0100_000b_5e1d_0007);
        let restarted = 0x0100_000b_5f00_0000;
        assert_eq!(
            server_era(7, session(first)),
            server_era(9, session(second))
        );
        assert_ne!(
            server_era(7, session(first)),
            server_era(9, session(restarted))
        );
        let of_ensemble = 0x0000_0005_0000_0007;
        assert_eq!(server_era(of_ensemble, session(first)), 5);
        assert_eq!(server_era(of_ensemble, session(restarted)), 5);
    }

    #[test]
    fn impossible_date_of_a_znode_counts_as_unknown() {
        assert_eq!(mtime_micros(1_700_000_000_123), Some(1_700_000_000_123_000));
        for mtime in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(mtime_micros(mtime), None, "{mtime}");
        }
    }
}
