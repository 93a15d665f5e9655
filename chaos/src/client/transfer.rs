//! The workload of transfers: a client moves money from one account to another, while it holds one lock on both
//! accounts.

use std::time::Duration;

use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::context::Ctx;
use super::hold::Hold;
use super::wanted::Wanted;

/// Reads both balances, works, and books the transfer. The client does not check the lock again before it books,
/// because the bank checks the fencing token.
pub(super) async fn work(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold, time: Duration) {
    let Some(token) = hold.token() else {
        return tokio::time::sleep(time).await;
    };
    let by = ctx.signed(op);
    let names = wanted.resources();
    let look = format!("look {} {token} {by}\n", names.join(","));
    let Some(balances) = ask(ctx, &look).await else {
        return;
    };
    tokio::time::sleep(time).await;
    let amount = rand::rng().random_range(1..=10);
    let [from, to] = balances[..] else {
        return;
    };
    let after = [from - amount, to + amount];
    let parts = names.iter().zip(after);
    let parts: Vec<String> = parts.map(|(name, now)| format!("{name}={now}")).collect();
    ask(ctx, &format!("book {} {token} {by}\n", parts.join(","))).await;
}

/// Returns the balances from the bank's answer, or `None` if the bank rejected the token or did not answer.
async fn ask(ctx: &Ctx, question: &str) -> Option<Vec<i64>> {
    let stream = UnixStream::connect(&ctx.settings.register).await.ok()?;
    let mut stream = BufReader::new(stream);
    stream.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await.ok()?;
    let rest = answer.trim().strip_prefix("ok")?;
    let numbers = rest.split_whitespace().map(|word| word.parse().ok());
    numbers.collect()
}
