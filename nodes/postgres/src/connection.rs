//! One connection to a PostgreSQL server.
//!
//! # Why like this
//!
//! `tokio-postgres` divides a connection into a client and a driver, which its documentation runs in a task of its own.
//! Here, each request polls the driver. So the connection needs no task and no runtime of its own, and dropping the
//! [`Connection`] closes the socket at once.
//!
//! A dropped request does no harm: the driver still reads its answer, and the next request gets its own.
//!
//! If an administrator cancels a commit that waits for a synchronous standby, the server reports the commit as done, and
//! sends only a warning. So such a warning makes the request fail.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use quorate::node::{Fault, Protocol, other_protocol};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, NoTls, Notification, SimpleQueryMessage, SimpleQueryRow,
};

use crate::dial::dial;
use crate::fault::{fault, of_login, plain};
use crate::pooler;
use crate::stream::Bytes;
use crate::url::{Address, Place};

/// If a server that this process has not met has not completed the login after this time, the client also finds out
/// whether it is a server of another kind: 200 ms, well below the default connect timeout. Redis and other servers wait
/// for the rest of a request that they do not understand.
const SILENCE: Duration = Duration::from_millis(200);
/// The oldest version of PostgreSQL that this crate supports.
const OLDEST: u32 = 14;

/// A connection to one PostgreSQL server.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
}

/// The part of a connection that sends requests and receives answers.
pub(crate) struct Driver {
    inner: Box<tokio_postgres::Connection<Box<dyn Bytes>, NoTlsStream>>,
    /// Whether the connection has ended. The driver must not be polled again.
    ended: bool,
    /// The notifications that were received, but not yet read.
    pub(crate) notifications: Vec<Notification>,
    /// The largest number of notifications to keep. A session listens to no channel, so it keeps none, whatever the
    /// server sends.
    pub(crate) room: usize,
    /// Whether the server has stopped to wait for a standby although a commit was not replicated.
    is_unreplicated: bool,
    /// Whether a request was sent whose answer has not arrived.
    pub(crate) is_waiting: bool,
}

impl Connection {
    /// Opens a connection to the database of this address.
    pub(crate) async fn open(address: &Address) -> Result<Self, Fault> {
        Self::open_database(address, &address.database).await
    }

    /// Opens a connection to a database on the server of this address. Refuses an old server, and a connection pooler
    /// that is not in session mode.
    pub(crate) async fn open_database(address: &Address, database: &str) -> Result<Self, Fault> {
        // The future of a login is large, and many futures contain this one.
        let opening = Box::pin(Self::log_in(address, database));
        let mut connection = or_other_kind(opening, address).await?;
        connection.check_version()?;
        connection.check_pooler(address, database).await?;
        address.met.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    async fn log_in(address: &Address, database: &str) -> Result<Self, Fault> {
        let stream = dial(address).await?;
        let mut config = Config::new();
        config.user(&address.user).dbname(database);
        config
            .application_name("quorate")
            .ssl_mode(SslMode::Disable);
        if let Some(password) = address.password().await {
            config.password(password);
        }
        let connected = config.connect_raw(stream, NoTls).await;
        let (client, inner) = connected.map_err(|error| of_login(&error, address))?;
        let driver = Driver {
            inner: Box::new(inner),
            ended: false,
            notifications: Vec::new(),
            room: 0,
            is_unreplicated: false,
            is_waiting: false,
        };
        Ok(Self { client, driver })
    }

    /// The version of the server, as the server writes it, for example `15.18 (Debian ..)`.
    pub(crate) fn version(&self) -> &str {
        self.driver
            .inner
            .parameter("server_version")
            .unwrap_or_default()
    }

    fn check_version(&self) -> Result<(), Fault> {
        let version = self.version();
        let digits = version.split(|c: char| !c.is_ascii_digit()).next();
        let number = digits.and_then(|digits| digits.parse::<u32>().ok());
        if number.is_some_and(|number| number >= OLDEST) {
            return Ok(());
        }
        let shown = plain(version);
        let why =
            format!("the version of the server is {shown:?}: use PostgreSQL {OLDEST} or newer");
        Err(Fault::Unsupported(why.into()))
    }

    async fn check_pooler(&mut self, address: &Address, database: &str) -> Result<(), Fault> {
        let announced = pooler::announced(&self.client).await;
        let backend = self.backend().await?;
        if backend.is_none() {
            return Err(pooler::refused());
        }
        if announced == backend {
            return Ok(());
        }
        // The first connection is idle now. If its backend serves the second connection, the pooler shares it.
        let mut other = Box::pin(Self::log_in(address, database)).await?;
        let other_backend = other.backend().await?;
        if other_backend.is_some() && other_backend != backend && self.backend().await? == backend {
            Ok(())
        } else {
            Err(pooler::refused())
        }
    }

    /// The id of the backend process that serves this connection; `None` if the server does not show it.
    ///
    /// This is the first statement of each connection, so it also sets `search_path`. Otherwise, the server would prefer
    /// a function in the schema `public` to its own if the arguments fit better. That function could be the code of
    /// another user, and would run with the rights of this one.
    async fn backend(&mut self) -> Result<Option<i32>, Fault> {
        let rows = self
            .ask("SET search_path=pg_catalog;SELECT pg_backend_pid()")
            .await?;
        Ok(rows
            .first()
            .and_then(|row| row.first()?.as_ref()?.parse().ok()))
    }

    /// Executes statements without parameters, and returns the rows of all of them as text.
    pub(crate) async fn ask(&mut self, statements: &str) -> Result<Vec<TextRow>, Fault> {
        let Self { client, driver } = self;
        driver.run(text_rows(client, statements)).await
    }
}

/// The columns of a row as text; `None` for NULL.
pub(crate) type TextRow = Vec<Option<String>>;

/// Executes statements without parameters, and returns the rows of all of them as text.
pub(crate) async fn text_rows(client: &Client, statements: &str) -> Result<Vec<TextRow>, Error> {
    let messages = client.simple_query(statements).await?;
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    // A server with the encoding SQL_ASCII may send text that is not UTF-8.
    let text = |row: SimpleQueryRow| {
        let column = |column| Ok(row.try_get(column)?.map(str::to_owned));
        (0..row.len()).map(column).collect()
    };
    rows.map(text).collect()
}

impl Driver {
    /// Executes a request of the client of this connection.
    pub(crate) async fn run<T>(
        &mut self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Fault> {
        self.is_waiting = true;
        let answer = self.answer(request).await;
        self.is_waiting = false;
        if std::mem::take(&mut self.is_unreplicated) {
            let why = "an administrator canceled a commit that waited for a synchronous standby";
            return Err(Fault::Disconnected(why.into()));
        }
        answer
    }

    async fn answer<T>(
        &mut self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Fault> {
        let mut request = pin!(request);
        poll_fn(|cx| {
            // The first poll of the request queues its messages. The driver sends them, and receives the answers.
            let answered = request.as_mut().poll(cx);
            if let Poll::Ready(answer) = answered {
                return Poll::Ready(answer.map_err(|error| fault(&error, true)));
            }
            let end = self.turn(cx);
            match (request.as_mut().poll(cx), end) {
                // The error of the driver shows why the connection was closed.
                (Poll::Ready(Err(error)), Some(end)) if error.is_closed() => {
                    Poll::Ready(Err(end.fault()))
                }
                (Poll::Ready(answer), _) => {
                    Poll::Ready(answer.map_err(|error| fault(&error, true)))
                }
                (Poll::Pending, Some(end)) => Poll::Ready(Err(end.fault())),
                (Poll::Pending, None) => Poll::Pending,
            }
        })
        .await
    }

    /// Sends a request, and does not wait for its answer. The next request of this connection reads and drops it.
    pub(crate) async fn send<T>(&mut self, request: impl Future<Output = T>) {
        let mut request = pin!(request);
        poll_fn(|cx| {
            let _ = request.as_mut().poll(cx);
            self.turn(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Waits for notifications. Fails when the connection has ended.
    pub(crate) async fn next_notifications(&mut self) -> Result<Vec<Notification>, Fault> {
        poll_fn(|cx| {
            let end = self.turn(cx);
            if !self.notifications.is_empty() {
                return Poll::Ready(Ok(std::mem::take(&mut self.notifications)));
            }
            match end {
                Some(end) => Poll::Ready(Err(end.fault())),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Sends and receives as much as possible without waiting. Returns why the connection has ended; `None` if it is
    /// open.
    fn turn(&mut self, cx: &mut Context<'_>) -> Option<Ended> {
        while !self.ended {
            match self.inner.poll_message(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notification(message)))) => {
                    if self.notifications.len() < self.room {
                        self.notifications.push(message);
                    }
                }
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                    self.is_unreplicated |= is_of_replication(&notice);
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    return Some(Ended::By(error));
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return None,
            }
        }
        Some(Ended::Silently)
    }
}

/// Whether the server warns that it has stopped to wait for a standby. The text depends on the language of the server,
/// so the name of the server's function decides. A server that does not send this name may mean any warning.
fn is_of_replication(notice: &DbError) -> bool {
    let is_warning = notice.parsed_severity() == Some(Severity::Warning);
    is_warning
        && notice
            .routine()
            .is_none_or(|routine| routine == "SyncRepWaitForLSN")
}

/// How a connection has ended.
enum Ended {
    /// An error, for example the message of a server that shuts down.
    By(Error),
    /// No reason is known.
    Silently,
}

impl Ended {
    fn fault(&self) -> Fault {
        match self {
            Self::By(error) => fault(error, true),
            Self::Silently => Fault::Disconnected("closed by the server".into()),
        }
    }
}

/// Waits for the end of `opening`. Fails earlier if the server is silent, and speaks another protocol than PostgreSQL.
async fn or_other_kind<T>(
    opening: impl Future<Output = Result<T, Fault>>,
    address: &Address,
) -> Result<T, Fault> {
    let mut opening = pin!(opening);
    let Place::Tcp { host, port } = &address.place else {
        return opening.await;
    };
    if address.met.load(Ordering::Relaxed) {
        return opening.await;
    }
    let other = || other_protocol((host.as_str(), *port), Protocol::Postgres);
    match tokio::time::timeout(SILENCE, &mut opening).await {
        // MySQL speaks first, so the login fails at once.
        Ok(Err(Fault::Down(why)))
            if &*why != "closed by the server" && !why.contains("refused") =>
        {
            let found = tokio::time::timeout(SILENCE, other()).await.ok().flatten();
            return Err(found.map_or(Fault::Down(why), |text| Fault::Unsupported(text.into())));
        }
        Ok(opened) => return opened,
        Err(_) => {}
    }
    tokio::select! {
        biased;
        opened = &mut opening => opened,
        Some(text) = other() => Err(Fault::Unsupported(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use quorate_testbed::{Postgres, PostgresOptions, not_run};

    use super::*;

    #[tokio::test]
    async fn connection_keeps_no_more_notifications_than_it_has_room_for() {
        if let Err(error) = Postgres::available() {
            return not_run(
                "connection_keeps_no_more_notifications_than_it_has_room_for",
                &error.to_string(),
            );
        }
        let server = Postgres::start_with(PostgresOptions::new()).expect("a server");
        let address = Address::open(&server.url("postgres")).expect("a URL");
        let mut connection = Connection::open(&address).await.expect("connected");
        for room in [0, 2] {
            connection.driver.room = room;
            let notify = "LISTEN x;NOTIFY x,'1';NOTIFY x,'2';NOTIFY x,'3'";
            connection.ask(notify).await.expect("sent");
            // The answer to this statement arrives behind the notifications.
            connection.ask("SELECT 1").await.expect("an answer");
            assert_eq!(connection.driver.notifications.len(), room);
        }
    }
}
