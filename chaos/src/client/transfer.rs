//! The workload of transfers: a client moves money from one account to another, while it holds one lock on both
//! accounts.

use std::time::Duration;

use rand::RngExt;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::hold::Hold;

/// Reads both balances, works, and books the transfer. The client does not check the lock again before it books,
/// because the bank checks the fencing token.
pub(super) async fn work(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold, work_time: Duration) {
    let Some(token) = hold.token() else {
        return tokio::time::sleep(work_time).await;
    };
    let attempt_name = ctx.attempt_name(op);
    let names = spec.resources();
    let question = format!("look {} {token} {attempt_name}\n", names.join(","));
    let Some(balances) = ask_bank(ctx, &question).await else {
        return;
    };
    tokio::time::sleep(work_time).await;
    let amount = rand::rng().random_range(1..=10);
    let [from, to] = balances[..] else {
        return;
    };
    let new_balances = [from - amount, to + amount];
    let booked_balances = names.iter().zip(new_balances);
    let booked_balances: Vec<String> = booked_balances
        .map(|(name, balance)| format!("{name}={balance}"))
        .collect();
    ask_bank(
        ctx,
        &format!(
            "book {} {token} {attempt_name}\n",
            booked_balances.join(",")
        ),
    )
    .await;
}

/// Returns the balances from the bank's answer, or `None` if the bank rejected the token or did not answer.
async fn ask_bank(ctx: &Ctx, question: &str) -> Option<Vec<i64>> {
    let stream = UnixStream::connect(&ctx.settings.register).await.ok()?;
    let mut stream = BufReader::new(stream);
    stream.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await.ok()?;
    let balances = answer.trim().strip_prefix("ok")?;
    let numbers = balances
        .split_whitespace()
        .map(|reason_of| reason_of.parse().ok());
    numbers.collect()
}
