//! Servers that speak RESP and misbehave on purpose: they hang up, stay silent, send garbage, or never stop sending.
//!
//! The behaviour is a value, a [`Script`], which may be changed while the server runs. The server itself answers only
//! the commands of a client's handshake. The script determines what happens with all later commands.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;

/// The behaviour of a [`Hostile`] server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Script {
    /// Forwards bytes between the clients and a real server. If an earlier script has received a command on a
    /// connection, closes this connection: the client then reconnects, and its handshake reaches the real server.
    Relay {
        /// The real server.
        target: SocketAddr,
        /// How the bytes are manipulated.
        tampering: Tampering,
    },
    /// Accepts connections and reads from them, but never answers.
    Hush,
    /// Sends these bytes to every new connection, without waiting for a command, and hangs up.
    Dismiss(AnswerBytes),
    /// Sends these bytes in reply to every command, including those of the handshake.
    Say(AnswerBytes),
    /// Refuses every command with an error that quotes the whole command, as servers do for unknown commands.
    Quote,
    /// Answers the handshake like a Redis 7 server that has run for a long time. After the handshake, the server
    /// behaves according to [`AfterHandshake`].
    Greet(AfterHandshake),
}

/// How a relay manipulates the bytes that it forwards. In these descriptions, a *question* is a command that is not
/// part of the handshake.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Tampering {
    /// The bytes are not manipulated.
    None,
    /// Replies are sent byte by byte with small pauses, about 16 kB per second.
    Bytewise,
    /// Inserts these bytes once on every connection, before the reply to the first question. The client takes them for
    /// this reply. From then on, it takes the reply to each question for the reply to the next question.
    Slip(AnswerBytes),
    /// Sends these bytes in reply to every question, and forwards no question to the real server.
    Say(AnswerBytes),
    /// Forwards this number of questions on a connection, and then hangs up without waiting for their replies. So the
    /// client gets no reply to the last question, and perhaps none to earlier ones.
    ///
    /// With 0, no question is forwarded: hangs up when the first question arrives, or when no command has arrived for
    /// 20 ms after the handshake.
    HangUpAt(usize),
}

/// The behaviour of the server after the handshake.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AfterHandshake {
    /// Never sends another byte after the handshake.
    Hush,
    /// Hangs up after the handshake: at the next command, or after 20 ms without a command.
    HangUp,
    /// Replies with `words` to a fixed number of commands, and hangs up at the next command.
    HangUpAfter {
        /// The number of commands that are answered.
        commands: usize,
        /// The answer to each of these commands.
        words: AnswerBytes,
    },
    /// Sends these bytes in reply to every command.
    Say(AnswerBytes),
    /// Sends `first` after the handshake, without waiting for a command, and then repeats `rest` without end, at up to
    /// 16 MB per second.
    Flood {
        /// The bytes that are sent once.
        first: Vec<u8>,
        /// The bytes that are repeated.
        rest: Vec<u8>,
    },
}

/// The bytes of an answer: fixed or random.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnswerBytes {
    /// Exactly these bytes.
    These(Vec<u8>),
    /// Random bytes, different in each answer. The field is the maximum number of bytes.
    Garbage(usize),
}

impl From<&str> for AnswerBytes {
    fn from(words: &str) -> Self {
        Self::These(words.as_bytes().to_vec())
    }
}

/// A hostile server on a free port of 127.0.0.1.
///
/// The server runs on a thread of its own, as a [`Proxy`](crate::Proxy) does. Dropping this value closes its port and
/// all its connections.
///
/// ```no_run
/// use quorate_testbed::{Hostile, Script, AfterHandshake};
///
/// let hostile = Hostile::start(Script::Greet(AfterHandshake::HangUp))?;
/// let url = hostile.url();
/// // .. how often does a client of `url` come back?
/// assert!(hostile.accepted() < 60);
/// hostile.play(Script::Hush);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the hostile server stops it"]
pub struct Hostile {
    address: SocketAddr,
    script: watch::Sender<Option<Script>>,
    received: Arc<Mutex<Received>>,
    thread: Option<JoinHandle<()>>,
}

/// The numbers of connections and commands that were received so far.
#[derive(Debug, Default)]
struct Received {
    accepted: u64,
    commands: BTreeMap<String, u64>,
}

impl Hostile {
    /// Starts a server with this script.
    ///
    /// # Errors
    ///
    /// If no port, thread or file handle is available.
    pub fn start(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (script, script_view) = watch::channel(Some(script));
        let received = Arc::<Mutex<Received>>::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let accept_loop = accept_connections(listener, script_view, received.clone());
        let thread = std::thread::Builder::new()
            .name(format!("hostile-{}", address.port()))
            .spawn(move || {
                // The tasks of all connections run in this `LocalSet`, and end when it is dropped.
                LocalSet::new().block_on(&runtime, accept_loop);
            })?;
        Ok(Self {
            address,
            script,
            received,
            thread: Some(thread),
        })
    }

    /// The address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The address as a `redis://` URL.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Changes the script for existing and new connections. An answer that is being sent at that moment may be
    /// truncated.
    pub fn play(&self, script: Script) {
        self.script.send_replace(Some(script));
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.received().accepted
    }

    /// The number of commands received so far on all connections.
    pub fn commands(&self) -> u64 {
        self.received().commands.values().sum()
    }

    /// The number of commands with this name received so far; `name` must be in capitals.
    pub fn commands_named(&self, name: &str) -> u64 {
        self.received().commands.get(name).copied().unwrap_or(0)
    }

    fn received(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.script.send_replace(None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type ScriptView = watch::Receiver<Option<Script>>;

/// Accepts connections until the server is dropped.
async fn accept_connections(
    listener: TcpListener,
    mut script_view: ScriptView,
    received: Arc<Mutex<Received>>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut connection_view = script_view.clone();
    let accept_loop = async {
        loop {
            // If accepting fails, usually no file handle is free. Try again later.
            let Ok((client, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let connection_number = {
                let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
                received.accepted += 1;
                received.accepted
            };
            let _ = client.set_nodelay(true);
            connection_view.mark_unchanged();
            tokio::task::spawn_local(serve_connection(
                client,
                connection_number,
                connection_view.clone(),
                received.clone(),
            ));
        }
    };
    tokio::select! {
        _ = script_view.wait_for(Option::is_none) => {}
        () = accept_loop => {}
    }
}

/// Follows the current script on one connection, until the script or the client ends the connection.
async fn serve_connection(
    client: TcpStream,
    number: u64,
    mut script_view: ScriptView,
    received: Arc<Mutex<Received>>,
) {
    let mut serve_connection = ScriptedConnection {
        port: client.local_addr().map_or(0, |address| address.port()),
        client,
        number,
        commands_named: Vec::new(),
        is_scripted: false,
        is_greeted: false,
        answered: 0,
        upstream: None,
        rng: StdRng::seed_from_u64(number),
        received,
    };
    loop {
        let Some(script) = script_view.borrow_and_update().clone() else {
            return;
        };
        tokio::select! {
            biased; // the new script answers the commands that arrive after the change
            change = script_view.changed() => if change.is_err() { return },
            _ = serve_connection.play(&script) => return,
        }
    }
}

/// The server assumes that the handshake is finished if no command arrives for this time. On a busy machine, a client
/// may pause for some milliseconds between two commands of the handshake.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(20);

/// The number of bytes that a flood sends in one write. It pauses after each write, so that it does not occupy a whole
/// processor.
const FLOOD_CHUNK: usize = 16 << 10;
const FLOOD_PAUSE: Duration = Duration::from_millis(1);

/// The number of bytes between two pauses when replies are sent byte by byte.
const BYTES_PER_PAUSE: usize = 16;

type Command = Vec<Vec<u8>>;

/// One connection of the hostile server.
struct ScriptedConnection {
    client: TcpStream,
    /// The port of this server. The server's run id contains it, so that each hostile server of one process has a
    /// different run id.
    port: u16,
    number: u64,
    /// Received bytes that do not form a whole command yet.
    commands_named: Vec<u8>,
    /// Whether a script other than [`Script::Relay`] has received a command on this connection. If so, `Relay` closes
    /// it.
    is_scripted: bool,
    /// Whether the server has answered a command of the handshake on this connection. The handshake may still go on.
    is_greeted: bool,
    /// The number of commands after the handshake that were answered.
    answered: usize,
    upstream: Option<TcpStream>,
    rng: StdRng,
    received: Arc<Mutex<Received>>,
}

impl ScriptedConnection {
    /// Follows the script. Returns when the connection is to be closed.
    async fn play(&mut self, script: &Script) -> io::Result<()> {
        if let Script::Relay { target, tampering } = script {
            return self.relay(*target, tampering).await;
        }
        self.upstream = None;
        match script {
            Script::Dismiss(words) => self.say(words).await,
            Script::Greet(then) => self.greet(then).await,
            Script::Relay { .. } | Script::Hush | Script::Say(_) | Script::Quote => loop {
                let command = self.next_command().await?;
                match script {
                    Script::Say(words) => self.say(words).await?,
                    Script::Quote => self.client.write_all(&quote_error(&command)).await?,
                    _ => {}
                }
            },
        }
    }

    async fn greet(&mut self, after_handshake: &AfterHandshake) -> io::Result<()> {
        loop {
            let sends_unasked = matches!(
                after_handshake,
                AfterHandshake::HangUp | AfterHandshake::Flood { .. }
            );
            let command = if self.is_greeted && sends_unasked {
                match tokio::time::timeout(HANDSHAKE_PAUSE, self.next_command()).await {
                    Ok(command) => Some(command?),
                    Err(_) => None,
                }
            } else {
                Some(self.next_command().await?)
            };
            if let Some(command) = &command
                && let Some(reply) = handshake_reply(command, self.port, self.number)
            {
                self.client.write_all(&reply).await?;
                self.is_greeted = true;
                continue;
            }
            match after_handshake {
                AfterHandshake::Hush => {}
                AfterHandshake::HangUp => return Ok(()),
                AfterHandshake::HangUpAfter { commands, words } => {
                    if self.answered >= *commands {
                        return Ok(());
                    }
                    self.say(words).await?;
                }
                AfterHandshake::Say(words) => self.say(words).await?,
                AfterHandshake::Flood { first, rest } => {
                    self.client.write_all(first).await?;
                    return self.flood(rest).await;
                }
            }
            self.answered += 1;
        }
    }

    /// Sends the same bytes without end. Also reads the client's commands, because otherwise the client could block
    /// while it sends.
    async fn flood(&mut self, bytes: &[u8]) -> io::Result<()> {
        let chunk = bytes.repeat((FLOOD_CHUNK / bytes.len().max(1)).max(1));
        let (mut reader, mut writer) = self.client.split();
        let discard_input = async {
            let mut buffer = vec![0; 4096];
            while reader.read(&mut buffer).await? > 0 {}
            Err::<(), _>(io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        let send_chunks = async {
            loop {
                writer.write_all(&chunk).await?;
                tokio::time::sleep(FLOOD_PAUSE).await;
            }
        };
        tokio::select! {
            result = discard_input => result,
            result = send_chunks => result,
        }
    }

    async fn relay(&mut self, target: SocketAddr, tampering: &Tampering) -> io::Result<()> {
        if self.upstream.is_none() {
            if self.is_scripted || !self.commands_named.is_empty() {
                return Ok(());
            }
            let upstream = TcpStream::connect(target).await?;
            upstream.set_nodelay(true)?;
            self.upstream = Some(upstream);
        }
        let mut question_count = 0;
        let mut has_replied = false;
        let mut replies = vec![0; 4096];
        loop {
            let Some(upstream) = &mut self.upstream else {
                return Ok(());
            };
            tokio::select! {
                read_bytes = self.client.read_buf(&mut self.commands_named) => {
                    if read_bytes? == 0 || self.forward_commands(tampering, &mut question_count).await?.is_break() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(HANDSHAKE_PAUSE), if has_replied && matches!(tampering, Tampering::HangUpAt(0)) => {
                    return Ok(());
                }
                read_bytes = upstream.read(&mut replies) => {
                    let count = read_bytes?;
                    if count == 0 {
                        return Ok(());
                    }
                    has_replied = true;
                    if matches!(tampering, Tampering::Bytewise) {
                        self.trickle(&replies[..count]).await?;
                    } else {
                        self.client.write_all(&replies[..count]).await?;
                    }
                }
            }
        }
    }

    /// Forwards complete commands to the real server, and manipulates them according to `tampering`. Returns `Break` if
    /// the caller must close the connection.
    async fn forward_commands(
        &mut self,
        tampering: &Tampering,
        question_count: &mut usize,
    ) -> io::Result<ControlFlow<()>> {
        while let Some((command, bytes)) = self.take_command()? {
            let is_question = handshake_reply(&command, self.port, self.number).is_none();
            *question_count += usize::from(is_question);
            match tampering {
                Tampering::Slip(words) if is_question && *question_count == 1 => {
                    self.say(words).await?;
                }
                Tampering::Say(words) if is_question => {
                    self.say(words).await?;
                    continue;
                }
                _ => {}
            }
            if let Some(upstream) = &mut self.upstream {
                upstream.write_all(&bytes).await?;
            }
            if matches!(tampering, Tampering::HangUpAt(last) if is_question && *question_count >= *last)
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn trickle(&mut self, bytes: &[u8]) -> io::Result<()> {
        for (index, byte) in bytes.iter().enumerate() {
            self.client.write_all(&[*byte]).await?;
            if index % BYTES_PER_PAUSE == 0 {
                tokio::time::sleep(FLOOD_PAUSE).await;
            }
        }
        Ok(())
    }

    async fn say(&mut self, words: &AnswerBytes) -> io::Result<()> {
        match words {
            AnswerBytes::These(bytes) => self.client.write_all(bytes).await,
            AnswerBytes::Garbage(max_bytes) => {
                let mut bytes = vec![0; *max_bytes];
                self.rng.fill_bytes(&mut bytes);
                let count = 1 + usize::from(bytes.pop().unwrap_or(0)) * max_bytes / 256;
                bytes.truncate(count);
                self.client.write_all(&bytes).await
            }
        }
    }

    /// Returns the next command, or an error at the end of the stream. Cancel-safe: dropping the future loses no bytes.
    async fn next_command(&mut self) -> io::Result<Command> {
        loop {
            if let Some((command, _)) = self.take_command()? {
                self.is_scripted = true;
                return Ok(command);
            }
            if self.client.read_buf(&mut self.commands_named).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Removes the first complete command from the buffer. Returns the command and its bytes, or `None` if no command
    /// is complete.
    fn take_command(&mut self) -> io::Result<Option<(Command, Vec<u8>)>> {
        let Some((command, length)) = parse_command(&self.commands_named)? else {
            return Ok(None);
        };
        let bytes = self.commands_named.drain(..length).collect();
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        *received.commands.entry(word_at(&command, 0)).or_default() += 1;
        Ok(Some((command, bytes)))
    }
}

/// Parses a command as clients send it: an array of strings. Returns the command and its length in bytes; `None` if the
/// command is incomplete.
fn parse_command(bytes: &[u8]) -> io::Result<Option<(Command, usize)>> {
    let mut offset = 0;
    let mut read_number = |kind: u8, skip: usize| {
        offset += skip;
        let Some(length) = bytes[offset.min(bytes.len())..]
            .iter()
            .position(|b| *b == b'\n')
        else {
            return Ok(None);
        };
        let header_line = &bytes[offset..offset + length];
        offset += length + 1;
        let digits = header_line
            .strip_prefix(&[kind])
            .and_then(|l| l.strip_suffix(b"\r"));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let number: usize = digits.ok_or(io::ErrorKind::InvalidData)?;
        Ok::<_, io::Error>(Some((number, offset)))
    };
    let Some((count, mut end)) = read_number(b'*', 0)? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    let mut skip = 0;
    for _ in 0..count {
        let Some((length, start)) = read_number(b'$', skip)? else {
            return Ok(None);
        };
        let Some(word) = bytes.get(start..start.saturating_add(length)) else {
            return Ok(None);
        };
        words.push(word.to_vec());
        skip = length + 2;
        end = start + skip;
    }
    Ok((end <= bytes.len()).then_some((words, end)))
}

/// The word at this position of a command, in capitals.
fn word_at(command: &[Vec<u8>], index: usize) -> String {
    let word_at = command.get(index).map(Vec::as_slice).unwrap_or_default();
    String::from_utf8_lossy(word_at).to_ascii_uppercase()
}

/// The reply to a command of the handshake; `None` for any other command.
fn handshake_reply(command: &[Vec<u8>], port: u16, connection: u64) -> Option<Vec<u8>> {
    let reply = match (word_at(command, 0).as_str(), word_at(command, 1).as_str()) {
        ("HELLO", _) => format!(
            "%7\r\n+server\r\n+redis\r\n+version\r\n+7.2.4\r\n+proto\r\n:3\r\n+id\r\n:{connection}\r\n\
             +mode\r\n+standalone\r\n+role\r\n+master\r\n+modules\r\n*0\r\n"
        ),
        ("INFO", _) => bulk_string(&format!(
            "# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nrun_id:{:032x}{port:08x}\r\n\
                 uptime_in_seconds:1000000\r\n",
            std::process::id()
        )),
        ("SCRIPT", "LOAD") => bulk_string(&format!("{:040x}", hash(command.last()?))),
        ("GET", "QUORATE:MASTERS") => "_\r\n".into(),
        ("CLIENT", "ID") => format!(":{connection}\r\n"),
        ("CLIENT", "KILL") => ":0\r\n".into(),
        ("AUTH" | "SELECT" | "CLIENT", _) => "+OK\r\n".into(),
        ("SUBSCRIBE", _) => {
            let channel = String::from_utf8_lossy(command.get(1)?);
            format!(
                ">3\r\n{}{}:1\r\n",
                bulk_string("subscribe"),
                bulk_string(&channel)
            )
        }
        _ => return None,
    };
    Some(reply.into_bytes())
}

fn bulk_string(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A hash (FNV-1a) of a Lua script. The server formats it like a SHA-1 hash and uses it as the name of the script.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn quote_error(command: &[Vec<u8>]) -> Vec<u8> {
    let word_text = |word: &Vec<u8>| String::from_utf8_lossy(word).replace(['\r', '\n'], " ");
    let mut word_texts = command.iter().map(word_text);
    let mut reply = format!(
        "-ERR unknown command '{}'",
        word_texts.next().unwrap_or_default()
    );
    reply.push_str(", with args beginning with:");
    for word in word_texts {
        let _ = write!(reply, " '{word}'");
    }
    reply.push_str("\r\n");
    reply.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_command_is_not_parsed() {
        let complete = b"*2\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n";
        for cut in 0..complete.len() {
            assert!(
                parse_command(&complete[..cut]).unwrap().is_none(),
                "a command of which only the first {cut} bytes have arrived must not be parsed"
            );
        }
        let two_commands = [&complete[..], b"*1\r\n$4\r\nPING\r\n"].concat();
        let (command, length) = parse_command(&two_commands)
            .unwrap()
            .expect("the first command must be complete");
        assert_eq!(command, [b"ECHO".to_vec(), b"a\r\n".to_vec()]);
        assert_eq!(length, complete.len());
        assert!(parse_command(b"PING\r\n").is_err());
    }
}
