//! A connection to a master over which the caller sends a message and waits for the replies. Inspections and operators
//! use such a connection. It is separate from the connection that the link uses for locks.

use std::io;
use std::task::Poll;

use super::buffers::{Input, Output};
use super::connecting::{HelloHistory, Progress, before_first_answer, broken};
use super::dial::dial;
use super::handshake::{Handshake, HandshakeStage, Negotiated, check_hello_reply, write_hello};
use super::refusal::connection_fault;
use super::resp::Value;
use super::shared::Shared;
use super::socket::Socket;
use crate::node::Fault;
use crate::protocol::instant::Instant;

/// How many connections are opened to find out whether a server that closes them is a proxy.
const CONNECT_TRIES: usize = 3;

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
    pub(super) async fn with_handshake(
        shared: &std::sync::Arc<Shared>,
    ) -> Result<(Self, Negotiated), Fault> {
        let mut hello_history = HelloHistory::default();
        let mut first_fault = None;
        for _ in 0..CONNECT_TRIES {
            match Self::shake_hands(shared, &mut hello_history).await {
                Ok(result) => return Ok(result),
                Err(fault) if !fault.passes_by_itself() || !hello_history.is_probing() => {
                    return Err(fault);
                }
                Err(fault) => drop(first_fault.get_or_insert(fault)),
            }
        }
        Err(first_fault.unwrap_or(Fault::Stalled))
    }

    async fn shake_hands(
        shared: &std::sync::Arc<Shared>,
        hello_history: &mut HelloHistory,
    ) -> Result<(Self, Negotiated), Fault> {
        let mut conversation = Self::dial(shared).await?;
        let mut handshake =
            Handshake::begin(shared, hello_history.is_probing(), conversation.out());
        let result = within_connect_timeout(shared, async {
            loop {
                let progress = handshake.progress();
                let step_result = conversation
                    .receive_reply(|value| handshake.handle_reply(shared, &value, Instant::now()));
                let had_connection = shared.run_history.has_connected();
                let step = step_result.await.map_err(|error| match progress {
                    Progress::Nothing => before_first_answer(error, had_connection),
                    Progress::Probed | Progress::Greeted => broken(error, had_connection),
                });
                let is_finished = match step?? {
                    HandshakeStage::Waiting => false,
                    HandshakeStage::Probed => {
                        handshake.write_first_message(shared, conversation.out());
                        false
                    }
                    HandshakeStage::FirstMessageAnswered => !handshake.write_second_message(
                        shared,
                        conversation.out(),
                        Instant::now(),
                    )?,
                    HandshakeStage::Done => true,
                };
                if is_finished {
                    return Ok(());
                }
            }
        });
        match result.await {
            Ok(()) => Ok((conversation, handshake.into_negotiated())),
            Err(fault) => {
                let fault = hello_history.record_end(handshake.progress(), fault);
                shared.count_unanswered(hello_history.is_probing());
                Err(fault)
            }
        }
    }

    /// Connects and authenticates, without the rest of the handshake. So this also works if the server refuses another
    /// command of the handshake.
    pub(super) async fn with_hello_only(shared: &std::sync::Arc<Shared>) -> Result<Self, Fault> {
        let mut conversation = Self::dial(shared).await?;
        within_connect_timeout(shared, async {
            write_hello(shared, conversation.out());
            conversation
                .next_reply(|value| check_hello_reply(shared, &value))
                .await??;
            Ok(conversation)
        })
        .await
    }

    async fn dial(shared: &std::sync::Arc<Shared>) -> Result<Self, Fault> {
        Ok(Self {
            socket: within_connect_timeout(shared, dial(shared.clone())).await?,
            output: Output::new(),
            input: Input::new(),
        })
    }

    /// The buffer to which commands are appended.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.output.commands()
    }

    /// Sends the buffer, and passes the next `count` replies to `handle_reply`. A push counts as a reply only if it
    /// confirms a subscription; all other pushes are skipped.
    pub(super) async fn exchange(
        &mut self,
        count: usize,
        mut handle_reply: impl FnMut(usize, Value<'_>),
    ) -> io::Result<()> {
        let mut handled = 0;
        while handled < count {
            let handle_one = |value: Value<'_>| {
                if !matches!(&value, Value::Push(push) if !is_subscription_reply(push)) {
                    handle_reply(handled, value);
                    handled += 1;
                }
                Ok::<_, Fault>(())
            };
            let _never_fails = self.receive_reply(handle_one).await?;
        }
        Ok(())
    }

    async fn next_reply<T>(
        &mut self,
        handle: impl FnOnce(Value<'_>) -> Result<T, Fault>,
    ) -> Result<Result<T, Fault>, Fault> {
        self.receive_reply(handle).await.map_err(connection_fault)
    }

    /// Sends the buffer, and waits for one reply or push.
    async fn receive_reply<T>(&mut self, handle: impl FnOnce(Value<'_>) -> T) -> io::Result<T> {
        let mut handle = Some(handle);
        std::future::poll_fn(|cx| {
            // Read even if writing failed: an error that the server sent explains the failure best.
            let write_result = self.socket.poll_write(&mut self.output, cx);
            loop {
                if let Some(value) = self.input.next()? {
                    let handle = handle
                        .take()
                        .expect("a completed future must not be polled");
                    return Poll::Ready(Ok(handle(value)));
                }
                match self.socket.poll_read(&mut self.input, cx)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => break,
                }
            }
            match write_result {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

fn is_subscription_reply(push: &[Value<'_>]) -> bool {
    let kind = push.first().and_then(Value::text);
    matches!(kind, Some(b"subscribe" | b"unsubscribe"))
}

async fn within_connect_timeout<T>(
    shared: &Shared,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let connect_timeout = shared.options.connect_timeout;
    let result = shared.within(connect_timeout, work).await;
    result.unwrap_or(Err(Fault::NoConnection(connect_timeout)))
}
