//! A connection to a master over which the caller sends a message and waits for the replies. Inspections and operators
//! use such a connection. It is separate from the connection that the link uses for locks.

use std::io;
use std::task::Poll;

use super::buffers::{Input, Output};
use super::connecting::{Greeted, Progress, before_first_answer, broken};
use super::dial::dial;
use super::handshake::{Handshake, Negotiated, Step, hello, hello_answer};
use super::refusal::down;
use super::resp::Value;
use super::shared::Shared;
use super::socket::Socket;
use crate::node::Fault;
use crate::protocol::instant::Instant;

/// How many connections are opened to find out whether a server that closes them is a proxy.
const TRIES: usize = 3;

pub(super) struct Conversation {
    socket: Socket,
    output: Output,
    input: Input,
}

impl Conversation {
    /// Connects and completes the whole handshake. The time limit is one connect timeout for connecting, and another
    /// one for the handshake.
    ///
    /// If the server closes the connection before it answers, connects again, to find out whether it is a proxy that
    /// does not know HELLO.
    pub(super) async fn begin(
        shared: &std::sync::Arc<Shared>,
    ) -> Result<(Self, Negotiated), Fault> {
        let mut greeted = Greeted::default();
        let mut first = None;
        for _ in 0..TRIES {
            match Self::shake_hands(shared, &mut greeted).await {
                Ok(done) => return Ok(done),
                Err(fault) if !fault.passes_by_itself() || !greeted.probes() => return Err(fault),
                Err(fault) => drop(first.get_or_insert(fault)),
            }
        }
        Err(first.unwrap_or(Fault::Stalled))
    }

    async fn shake_hands(
        shared: &std::sync::Arc<Shared>,
        greeted: &mut Greeted,
    ) -> Result<(Self, Negotiated), Fault> {
        let mut talk = Self::dial(shared).await?;
        let mut handshake = Handshake::begin(shared, greeted.probes(), talk.out());
        let done = in_time(shared, async {
            loop {
                let progress = handshake.progress();
                let said = talk.reply(|value| handshake.note(shared, &value, Instant::now()));
                let met = shared.acquaintance.is_met();
                let step = said.await.map_err(|error| match progress {
                    Progress::Nothing => before_first_answer(error, met),
                    Progress::Probed | Progress::Greeted => broken(error, met),
                });
                let done = match step?? {
                    Step::Waits => false,
                    Step::Probed => {
                        handshake.greet(shared, talk.out());
                        false
                    }
                    Step::Turns => !handshake.turn(shared, talk.out(), Instant::now())?,
                    Step::Done => true,
                };
                if done {
                    return Ok(());
                }
            }
        });
        match done.await {
            Ok(()) => Ok((talk, handshake.done())),
            Err(fault) => {
                let fault = greeted.ended(handshake.progress(), fault);
                shared.count_unanswered(greeted.probes());
                Err(fault)
            }
        }
    }

    /// Connects and authenticates, without the rest of the handshake. So this also works if the server refuses another
    /// command of the handshake.
    pub(super) async fn introduce(shared: &std::sync::Arc<Shared>) -> Result<Self, Fault> {
        let mut talk = Self::dial(shared).await?;
        in_time(shared, async {
            hello(shared, talk.out());
            talk.next(|value| hello_answer(shared, &value)).await??;
            Ok(talk)
        })
        .await
    }

    async fn dial(shared: &std::sync::Arc<Shared>) -> Result<Self, Fault> {
        Ok(Self {
            socket: in_time(shared, dial(shared.clone())).await?,
            output: Output::new(),
            input: Input::new(),
        })
    }

    /// The buffer to which commands are appended.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.output.commands()
    }

    /// Sends the buffer, and passes the next `count` replies to `each`. A push counts as a reply only if it confirms a
    /// subscription; all other pushes are skipped.
    pub(super) async fn exchange(
        &mut self,
        count: usize,
        mut each: impl FnMut(usize, Value<'_>),
    ) -> io::Result<()> {
        let mut seen = 0;
        while seen < count {
            let reply = |value: Value<'_>| {
                if !matches!(&value, Value::Push(push) if !subscribes(push)) {
                    each(seen, value);
                    seen += 1;
                }
                Ok::<_, Fault>(())
            };
            let _never_fails = self.reply(reply).await?;
        }
        Ok(())
    }

    async fn next<T>(
        &mut self,
        take: impl FnOnce(Value<'_>) -> Result<T, Fault>,
    ) -> Result<Result<T, Fault>, Fault> {
        self.reply(take).await.map_err(down)
    }

    /// Sends the buffer, and waits for one reply or push.
    async fn reply<T>(&mut self, take: impl FnOnce(Value<'_>) -> T) -> io::Result<T> {
        let mut take = Some(take);
        std::future::poll_fn(|cx| {
            // Read even if writing failed: an error that the server sent explains the failure best.
            let wrote = self.socket.poll_write(&mut self.output, cx);
            loop {
                if let Some(value) = self.input.next()? {
                    let take = take.take().expect("a completed future must not be polled");
                    return Poll::Ready(Ok(take(value)));
                }
                match self.socket.poll_read(&mut self.input, cx)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => break,
                }
            }
            match wrote {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

fn subscribes(push: &[Value<'_>]) -> bool {
    let kind = push.first().and_then(Value::text);
    matches!(kind, Some(b"subscribe" | b"unsubscribe"))
}

async fn in_time<T>(
    shared: &Shared,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let limit = shared.options.connect_timeout;
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_| Err(Fault::NoConnection(limit)))
}
