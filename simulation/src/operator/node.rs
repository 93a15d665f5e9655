//! The `Node` through which an operator sends its orders to a master.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use quorate::ClientKind;
use quorate::node::{ChangeOrder, ChangeSeen, Fault, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::{BoxFuture, Runtime};

use crate::process::Process;
use crate::seeded_bugs::Flaw;
use crate::world::{Heard, Word, number_of};

/// How long an operator waits for a master's answer to one order.
const PATIENCE: Duration = Duration::from_millis(800);

/// For the seeded bug `CloseMinority`: the masters (by number) that the operator reports as closed, although they still
/// vote for clients of the old masters. Each value is the generation marker that it reports: its number and its text.
pub(super) type Claims = Arc<Mutex<HashMap<usize, (u64, String)>>>;

/// The `Node` (the library's interface to a master) of an operator. It opens one connection for each [`ChangeOrder`].
/// The operator sends lock requests through `locks`, as a client does.
pub(super) struct OperatorNode {
    pub(super) process: Arc<Process>,
    pub(super) master: usize,
    pub(super) locks: Arc<dyn Node>,
    /// Whether the master of this node is the first of the old masters.
    pub(super) first: bool,
    pub(super) flaw: Option<Flaw>,
    pub(super) claims: Claims,
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
        let talk = Talk {
            process: self.process.clone(),
            master: self.master,
            run: None,
            first: self.first,
            flaw: self.flaw,
            claims: self.claims.clone(),
        };
        Box::pin(talk.carry_out(order))
    }
}

/// One connection of an operator to a master.
struct Talk {
    process: Arc<Process>,
    master: usize,
    run: Option<u32>,
    first: bool,
    flaw: Option<Flaw>,
    claims: Claims,
}

impl Talk {
    async fn carry_out(mut self, order: ChangeOrder) -> ChangeSeen {
        let mut seen = ChangeSeen::default();
        if matches!(order, ChangeOrder::Identify) {
            // A simulated address always leads to the same server, so the operator need not connect.
            return seen;
        }
        if let Err(fault) = self.carried_out(&order, &mut seen).await {
            seen.fault = Some(fault);
        }
        seen
    }

    async fn carried_out(
        &mut self,
        order: &ChangeOrder,
        seen: &mut ChangeSeen,
    ) -> Result<(), Fault> {
        let mut ended = 0;
        let (mut counters, mut names, mut owned) = (Vec::new(), Vec::new(), Vec::new());
        match order {
            ChangeOrder::Raise {
                number,
                print,
                step,
                restores,
            } => {
                if self.only_claims(*number, print) {
                    return self.read_state(seen).await;
                }
                self.say(Word::Raise(*number, print.clone(), *restores))
                    .await?;
                if self.flaw != Some(Flaw::MarkWithoutKill) {
                    ended = self.end_clients_below(*step).await?;
                }
            }
            ChangeOrder::Counters(within) => {
                let Heard::Counters(all) = self.say(Word::Counters(*within)).await? else {
                    return Err(odd());
                };
                counters = all;
            }
            ChangeOrder::Values => {
                let Heard::Values(all) = self.say(Word::Values).await? else {
                    return Err(odd());
                };
                names = all;
            }
            ChangeOrder::Carry(counters) => {
                let Heard::Owned(all) = self.say(Word::Carry(counters.clone())).await? else {
                    return Err(odd());
                };
                owned = all;
            }
            _ => {}
        }
        self.read_state(seen).await?;
        seen.ended = ended;
        seen.counters = counters;
        seen.names = names;
        seen.owned = owned;
        Ok(())
    }

    /// Closes the connections of all clients whose step number is below `step` (docs/protocol.md, "Replacing masters").
    /// Returns the number of closed connections.
    async fn end_clients_below(&mut self, step: u64) -> Result<usize, Fault> {
        // List only the present connections. A client that connects later checks the master's generation marker.
        let Heard::Clients(list) = self.say(Word::Clients).await? else {
            return Err(odd());
        };
        let mut ended = 0;
        for client in quorate::testing::clients(&list) {
            if matches!(client.kind, ClientKind::AtStep(of, _) if of < step) {
                let killed = self.say(Word::Kill(client.id)).await?;
                ended += usize::from(matches!(killed, Heard::Killed(true)));
            }
        }
        Ok(ended)
    }

    async fn read_state(&mut self, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let Heard::Seen(found, list) = self.say(Word::Look).await? else {
            return Err(odd());
        };
        *seen = *found;
        seen.clients = quorate::testing::clients(&list);
        let claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, mark)) = claims.get(&self.master)
            && number_of(seen.mark.as_deref()) < *number
        {
            seen.mark = Some(mark.clone());
        }
        Ok(())
    }

    /// Whether the operator reports this master as closed, although the master still votes for clients of the old
    /// masters. The seeded bug `CloseMinority` does so for all old masters except the first.
    fn only_claims(&self, number: u64, print: &str) -> bool {
        let claims = self.flaw == Some(Flaw::CloseMinority) && number % 4 == 1 && !self.first;
        if claims {
            let mark = (number, format!("{number} {print}"));
            let mut known = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(self.master, mark);
        }
        claims
    }

    async fn say(&mut self, word: Word) -> Result<Heard, Fault> {
        let process = self.process.clone();
        let said = process
            .shared
            .say_order(process.client, (self.master, self.run), word);
        let said = std::pin::pin!(said);
        let late = process.sleep_until(process.now() + PATIENCE);
        let Either::Left(((heard, run), _)) = select(said, late).await else {
            process.shared.world().watch.coverage.unanswered += 1;
            return Err(Fault::Timeout(PATIENCE));
        };
        self.run.get_or_insert(run);
        match heard {
            Heard::Gone => Err(Fault::Down("connection closed".into())),
            Heard::Refused(how) => Err(Fault::Server(how.text().trim_end().into())),
            heard => Ok(heard),
        }
    }
}

fn odd() -> Fault {
    Fault::Server("an unexpected answer".into())
}
