//! Reads the settings and the replication source of a server, for the checks of `quorate doctor`.

use mysql_async::Row;
use quorate::Inspection;
use quorate::node::Fault;

use crate::connection::Connection;
use crate::fault::sanitize;
use crate::session::text_at;
use crate::url::Address;

/// The names of the variables that are read. Reading them needs no right.
const VARIABLES: [&str; 16] = [
    "read_only",
    "log_bin",
    "binlog_format",
    "sync_binlog",
    "innodb_flush_log_at_trx_commit",
    "wsrep_on",
    "group_replication_group_name",
    "max_connections",
    "thread_handling",
    "thread_pool_max_threads",
    "hostname",
    "port",
    "datadir",
    "server_uid",
    "server_uuid",
    "super_read_only",
];
/// The status variable with the number of open connections. It is read together with the settings.
pub(crate) const OPEN_CONNECTIONS: &str = "Threads_connected";

/// Reads the version and the variables of the server, and stores them in the inspection.
pub(crate) async fn read_settings(
    connection: &mut Connection,
    inspection: &mut Inspection,
) -> Result<(), Fault> {
    let packet = format!(
        "SELECT VERSION();SHOW GLOBAL VARIABLES WHERE Variable_name IN ('{}');\
         SHOW GLOBAL STATUS LIKE '{OPEN_CONNECTIONS}'",
        VARIABLES.join("','")
    );
    let results = connection.execute(&packet).await?;
    for (index, result) in results.into_iter().enumerate() {
        for mut row in result.rows {
            if index == 0 {
                store_kind_and_version(&text_at(&mut row, 0).unwrap_or_default(), inspection);
            } else if let (Some(name), Some(value)) = (text_at(&mut row, 0), text_at(&mut row, 1)) {
                inspection
                    .settings
                    .push((sanitize(&name), sanitize(&value)));
            }
        }
    }
    let is_on = |name| inspection.setting(name).is_some_and(|value| value != "OFF");
    let read_only = is_on("read_only") || is_on("super_read_only");
    inspection.role = Some(if read_only { "read-only" } else { "master" }.to_owned());
    Ok(())
}

fn store_kind_and_version(version: &str, inspection: &mut Inspection) {
    let kind = if version.contains("MariaDB") {
        "mariadb"
    } else {
        "mysql"
    };
    inspection.server = Some(kind.to_owned());
    // The version number ends at the first dash; the suffix names the build.
    let number = version.split('-').next().unwrap_or_default();
    inspection.version = Some(sanitize(number));
}

/// Records whether the server is a replica. A server that does not replicate this database (`Replicate_Ignore_DB`) does
/// not count as a replica.
///
/// Opens its own connection. If the user lacks the right for the query, the error makes this connection unusable.
pub(crate) async fn read_replication(address: &Address, inspection: &mut Inspection) {
    let (query, right) = if inspection.server.as_deref() == Some("mariadb") {
        ("SHOW ALL SLAVES STATUS", "SLAVE MONITOR")
    } else {
        ("SHOW REPLICA STATUS", "REPLICATION CLIENT")
    };
    let execution = async {
        let mut connection = Connection::open(address, false).await?;
        connection.execute(query).await
    };
    match execution.await {
        Ok(results) => {
            let rows = results.into_iter().flat_map(|result| result.rows);
            for mut row in rows {
                let ignored_databases =
                    text_of_column(&mut row, &["Replicate_Ignore_DB"]).unwrap_or_default();
                if ignored_databases
                    .split(',')
                    .any(|name| name == address.database)
                {
                    continue;
                }
                let host =
                    text_of_column(&mut row, &["Source_Host", "Master_Host"]).unwrap_or_default();
                let port =
                    text_of_column(&mut row, &["Source_Port", "Master_Port"]).unwrap_or_default();
                let source = ("source".to_owned(), sanitize(&format!("{host}:{port}")));
                inspection.settings.push(source);
                inspection.role = Some("slave".to_owned());
            }
        }
        Err(_) => inspection.unseen.push(format!(
            "whether the server is a replica: GRANT {right} ON *.* TO the user in the URL"
        )),
    }
}

fn text_of_column(row: &mut Row, names: &[&str]) -> Option<String> {
    let is_searched = |name: &str| {
        names
            .iter()
            .any(|searched| searched.eq_ignore_ascii_case(name))
    };
    let columns = row.columns_ref();
    let index = columns
        .iter()
        .position(|column| is_searched(&column.name_str()))?;
    // `SHOW` statements return numbers as text, so read every column as text.
    text_at(row, index)
}
