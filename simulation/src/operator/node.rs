//! The `Node` through which an operator sends its orders to a master.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use quorate::ClientKind;
use quorate::node::{ChangeOrder, ChangeSeen, Fault, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::{BoxFuture, Runtime};

use crate::flaw::Flaw;
use crate::process::Process;
use crate::world::{OrderKind, OrderReply, number_in_marker};

/// How long an operator waits for a master's answer to one order.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);

/// For the seeded bug `CloseMinority`: the masters (by number) that the operator reports as closed, although they still
/// vote for clients of the old masters. Each value is the generation marker that it reports: its number and its text.
pub(super) type FalseMarkers = Arc<Mutex<HashMap<usize, (u64, String)>>>;

/// The `Node` (the library's interface to a master) of an operator. It opens one connection for each [`ChangeOrder`].
/// The operator sends lock requests through `locks`, as a client does.
pub(super) struct OperatorNode {
    pub(super) process: Arc<Process>,
    pub(super) master: usize,
    pub(super) locks: Arc<dyn Node>,
    /// Whether the master of this node is the first of the old masters.
    pub(super) is_first_old: bool,
    pub(super) flaw: Option<Flaw>,
    pub(super) false_markers: FalseMarkers,
}

impl Node for OperatorNode {
    fn name(&self) -> &NodeName {
        self.locks.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        self.locks.send(request, reply);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.locks.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.locks.idle()
    }

    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        let connection = OperatorConnection {
            process: self.process.clone(),
            master: self.master,
            server_run: None,
            is_first_old: self.is_first_old,
            flaw: self.flaw,
            false_markers: self.false_markers.clone(),
        };
        Box::pin(connection.carry_out(order))
    }
}

/// One connection of an operator to a master.
struct OperatorConnection {
    process: Arc<Process>,
    master: usize,
    server_run: Option<u32>,
    is_first_old: bool,
    flaw: Option<Flaw>,
    false_markers: FalseMarkers,
}

impl OperatorConnection {
    async fn carry_out(mut self, order: ChangeOrder) -> ChangeSeen {
        let mut seen = ChangeSeen::default();
        if matches!(order, ChangeOrder::Identify) {
            // A simulated address always leads to the same server, so the operator need not connect.
            return seen;
        }
        if let Err(fault) = self.try_order(&order, &mut seen).await {
            seen.fault = Some(fault);
        }
        seen
    }

    async fn try_order(&mut self, order: &ChangeOrder, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let mut closed_connections = 0;
        let (mut counters, mut names, mut owned) = (Vec::new(), Vec::new(), Vec::new());
        match order {
            ChangeOrder::Raise {
                number,
                print,
                step,
                restores,
            } => {
                if self.claims_without_closing(*number, print) {
                    return self.read_state(seen).await;
                }
                self.send(OrderKind::RaiseMarker(*number, print.clone(), *restores))
                    .await?;
                if self.flaw != Some(Flaw::MarkWithoutKill) {
                    closed_connections = self.end_clients_below(*step).await?;
                }
            }
            ChangeOrder::Counters(within) => {
                let OrderReply::Counters(all) = self.send(OrderKind::ListCounters(*within)).await?
                else {
                    return Err(unexpected_answer());
                };
                counters = all;
            }
            ChangeOrder::Values => {
                let OrderReply::Values(all) = self.send(OrderKind::ListValues).await? else {
                    return Err(unexpected_answer());
                };
                names = all;
            }
            ChangeOrder::Carry(counters) => {
                let OrderReply::Owned(all) = self
                    .send(OrderKind::RaiseCounters(counters.clone()))
                    .await?
                else {
                    return Err(unexpected_answer());
                };
                owned = all;
            }
            _ => {}
        }
        self.read_state(seen).await?;
        seen.ended = closed_connections;
        seen.counters = counters;
        seen.names = names;
        seen.owned = owned;
        Ok(())
    }

    /// Closes the connections of all clients whose step number is below `step` (docs/protocol.md, "Replacing masters").
    /// Returns the number of closed connections.
    async fn end_clients_below(&mut self, step: u64) -> Result<usize, Fault> {
        // List only the present connections. A client that connects later checks the master's generation marker.
        let OrderReply::Clients(list) = self.send(OrderKind::ListClients).await? else {
            return Err(unexpected_answer());
        };
        let mut closed = 0;
        for client in quorate::testing::clients(&list) {
            if matches!(client.kind, ClientKind::AtStep(client_step, _) if client_step < step) {
                let killed = self.send(OrderKind::KillConnection(client.id)).await?;
                closed += usize::from(matches!(killed, OrderReply::Killed(true)));
            }
        }
        Ok(closed)
    }

    async fn read_state(&mut self, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let OrderReply::State(state, list) = self.send(OrderKind::ReadState).await? else {
            return Err(unexpected_answer());
        };
        *seen = *state;
        seen.clients = quorate::testing::clients(&list);
        let false_markers = self
            .false_markers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((number, mark)) = false_markers.get(&self.master)
            && number_in_marker(seen.mark.as_deref()) < *number
        {
            seen.mark = Some(mark.clone());
        }
        Ok(())
    }

    /// Whether the operator reports this master as closed, although the master still votes for clients of the old
    /// masters. The seeded bug `CloseMinority` does so for all old masters except the first.
    fn claims_without_closing(&self, number: u64, print: &str) -> bool {
        let is_false =
            self.flaw == Some(Flaw::CloseMinority) && number % 4 == 1 && !self.is_first_old;
        if is_false {
            let mark = (number, format!("{number} {print}"));
            let mut false_markers = self
                .false_markers
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            false_markers.insert(self.master, mark);
        }
        is_false
    }

    async fn send(&mut self, kind: OrderKind) -> Result<OrderReply, Fault> {
        let process = self.process.clone();
        let order = process
            .shared
            .send_order(process.client, (self.master, self.server_run), kind);
        let order = std::pin::pin!(order);
        let time_limit = process.sleep_until(process.now() + ANSWER_TIMEOUT);
        let Either::Left(((reply, server_run), _)) = select(order, time_limit).await else {
            process.shared.world().observer.coverage.unanswered_commands += 1;
            return Err(Fault::Timeout(ANSWER_TIMEOUT));
        };
        self.server_run.get_or_insert(server_run);
        match reply {
            OrderReply::Disconnected => Err(Fault::Down("connection closed".into())),
            OrderReply::Refused(how) => Err(Fault::Server(how.text().trim_end().into())),
            reply => Ok(reply),
        }
    }
}

fn unexpected_answer() -> Fault {
    Fault::Server("an unexpected answer".into())
}
