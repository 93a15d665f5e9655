//! Reads the settings and the replication source of a server, for the checks of `quorate doctor`.

use mysql_async::Row;
use quorate::Inspection;
use quorate::node::Fault;

use crate::connection::Connection;
use crate::fault::plain;
use crate::session::word;
use crate::url::Address;

/// The names of the variables that are read. Reading them needs no right.
const NAMES: [&str; 16] = [
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
pub(crate) const CONNECTED: &str = "Threads_connected";

/// Reads the version and the variables of the server, and stores them in the inspection.
pub(crate) async fn read(connection: &mut Connection, found: &mut Inspection) -> Result<(), Fault> {
    let packet = format!(
        "SELECT VERSION();SHOW GLOBAL VARIABLES WHERE Variable_name IN ('{}');\
         SHOW GLOBAL STATUS LIKE '{CONNECTED}'",
        NAMES.join("','")
    );
    let said = connection.ask(&packet).await?;
    for (number, one) in said.into_iter().enumerate() {
        for mut row in one.rows {
            if number == 0 {
                kind(&word(&mut row, 0).unwrap_or_default(), found);
            } else if let (Some(name), Some(value)) = (word(&mut row, 0), word(&mut row, 1)) {
                found.settings.push((plain(&name), plain(&value)));
            }
        }
    }
    let is_on = |name| found.setting(name).is_some_and(|value| value != "OFF");
    let read_only = is_on("read_only") || is_on("super_read_only");
    found.role = Some(if read_only { "read-only" } else { "master" }.to_owned());
    Ok(())
}

fn kind(version: &str, found: &mut Inspection) {
    let kind = if version.contains("MariaDB") {
        "mariadb"
    } else {
        "mysql"
    };
    found.server = Some(kind.to_owned());
    // The version number ends at the first dash; the suffix names the build.
    let number = version.split('-').next().unwrap_or_default();
    found.version = Some(plain(number));
}

/// Records whether the server is a replica. A server that does not replicate this database (`Replicate_Ignore_DB`) does
/// not count as a replica.
///
/// Opens its own connection. If the user lacks the right for the query, the error makes this connection unusable.
pub(crate) async fn source(address: &Address, found: &mut Inspection) {
    let (question, right) = if found.server.as_deref() == Some("mariadb") {
        ("SHOW ALL SLAVES STATUS", "SLAVE MONITOR")
    } else {
        ("SHOW REPLICA STATUS", "REPLICATION CLIENT")
    };
    let asked = async {
        let mut connection = Connection::open(address, false).await?;
        connection.ask(question).await
    };
    match asked.await {
        Ok(said) => {
            let rows = said.into_iter().flat_map(|one| one.rows);
            for mut row in rows {
                let ignored = named(&mut row, &["Replicate_Ignore_DB"]).unwrap_or_default();
                if ignored.split(',').any(|name| name == address.database) {
                    continue;
                }
                let host = named(&mut row, &["Source_Host", "Master_Host"]).unwrap_or_default();
                let port = named(&mut row, &["Source_Port", "Master_Port"]).unwrap_or_default();
                let source = ("source".to_owned(), plain(&format!("{host}:{port}")));
                found.settings.push(source);
                found.role = Some("slave".to_owned());
            }
        }
        Err(_) => found.unseen.push(format!(
            "whether the server is a replica: GRANT {right} ON *.* TO the user in the URL"
        )),
    }
}

fn named(row: &mut Row, names: &[&str]) -> Option<String> {
    let is_wanted = |name: &str| names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
    let columns = row.columns_ref();
    let at = columns
        .iter()
        .position(|column| is_wanted(&column.name_str()))?;
    // `SHOW` statements return numbers as text, so read every column as text.
    word(row, at)
}
