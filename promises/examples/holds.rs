//! Judges the holds of one exclusive lock. Reads one line for each hold from standard input: when the holder asked for
//! the lock, when it got the lock, when it ended its work (all in nanoseconds of one clock), and its fencing token.
//!
//! Prints each breach of the promises "one holder" and "rising tokens". Succeeds if there is none.

use std::process::ExitCode;

use quorate_promises::{Class, Event, Exclusion, Hold, Moment, Party, Promise, Tokens};

/// One line of the input.
struct Line {
    asked: u64,
    began: u64,
    ended: u64,
    token: u64,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let [asked, began, ended, token] = *numbers.ok()? else {
            return None;
        };
        (asked <= began && began <= ended).then_some(Self {
            asked,
            began,
            ended,
            token,
        })
    }

    fn hold(&self, id: usize) -> Hold<'static> {
        Hold {
            id: id as u64,
            client: id as u64,
            task: id as u64,
            places: &[0],
            class: Class::Exclusive,
            permit: None,
            began: Moment::at(self.asked),
            token: Some(self.token),
            until: self.ended,
            note: None,
        }
    }
}

fn main() -> ExitCode {
    let mut promises = (Exclusion::default(), Tokens::default());
    let mut holds = Vec::new();
    for (index, line) in std::io::stdin().lines().enumerate() {
        let line = line.unwrap_or_else(|error| error.to_string());
        let Some(line) = Line::parse(&line) else {
            eprintln!("line {} is no hold: {line:?}", index + 1);
            return ExitCode::from(2);
        };
        holds.push(line);
    }
    holds.sort_by_key(|line| line.began);
    let mut is_kept = !holds.is_empty();
    for (id, line) in holds.iter().enumerate() {
        let hold = line.hold(id);
        for breach in promises.observe(Moment::at(line.began), &Event::Obtained(&hold)) {
            let name = |party| match party {
                Party::Hold { id, .. } => format!("hold {}", id + 1),
                other => format!("{other:?}"),
            };
            println!("{}", breach.describe(name, |_| "the lock".to_owned()));
            is_kept = false;
        }
    }
    println!("{}", promises.summary());
    if is_kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
