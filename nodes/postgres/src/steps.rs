//! Divides a batch of commits into statements, and reads the outcome of each commit from their answers.

use std::collections::HashSet;

use quorate::node::Fault;
use quorate::node::store::{Change, Commit, Committed};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::fault::unreadable;
use crate::sql::Kind;

/// A parameter of a statement.
pub(crate) type Param<'a> = Box<dyn ToSql + Send + Sync + 'a>;

/// One statement of a batch.
pub(crate) struct Step<'a> {
    pub(crate) kind: Kind,
    pub(crate) params: Vec<Param<'a>>,
    /// The commits whose outcome the answer shows.
    shows: Shows<'a>,
}

/// A commit of one record: its number in the batch, the record, and the version that the record gets.
struct Single<'a> {
    number: usize,
    change: &'a Change,
    state: &'a [u8],
    next: u64,
}

/// How the answer of a statement shows the outcome of commits.
enum Shows<'a> {
    /// The answer shows no outcome.
    Nothing,
    /// The third column is the version of the record, and NULL if there is none. The commit only checks the version.
    Version(usize, u64),
    /// The third column is NULL if the commit was not applied.
    One(Single<'a>),
    /// The third column lists the names of the records whose commits were applied.
    Names(Vec<Single<'a>>),
    /// The third column shows whether all records have their versions, the fourth column how many were changed.
    Joint {
        number: usize,
        changed: usize,
        versions: Vec<u64>,
    },
}

/// Divides a batch of commits into statements. `draw` returns a random first version for a new record: if a record is
/// removed and created again, its versions almost certainly differ from the earlier versions.
pub(crate) fn steps(commits: &[Commit], mut draw: impl FnMut() -> u64) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let (mut created, mut changed) = (Vec::new(), Vec::new());
    for (number, commit) in commits.iter().enumerate() {
        let [change] = &commit.changes[..] else {
            joint(number, &commit.changes, &mut draw, &mut steps);
            continue;
        };
        let Some(state) = change.state.as_deref() else {
            steps.push(Step {
                kind: Kind::Check,
                params: vec![Box::new(&*change.name)],
                shows: Shows::Version(number, change.version),
            });
            continue;
        };
        let is_new = change.version == 0;
        let next = if is_new {
            draw()
        } else {
            change.version.saturating_add(1)
        };
        let list = if is_new { &mut created } else { &mut changed };
        list.push(Single {
            number,
            change,
            state,
            next,
        });
    }
    if !created.is_empty() {
        steps.push(create(created));
    }
    if changed.len() == 1 {
        steps.extend(changed.into_iter().map(change_one));
    } else if !changed.is_empty() {
        steps.push(change_many(changed));
    }
    steps
}

/// A version as a number of the database. Versions of this store are smaller than 2^63, so another one fits no record.
fn number(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(-1)
}

fn names(singles: &[Single<'_>]) -> Vec<Vec<u8>> {
    singles
        .iter()
        .map(|single| single.change.name.to_vec())
        .collect()
}

fn create(singles: Vec<Single<'_>>) -> Step<'_> {
    let versions: Vec<i64> = singles.iter().map(|single| number(single.next)).collect();
    let states: Vec<&[u8]> = singles.iter().map(|single| single.state).collect();
    Step {
        kind: Kind::Create,
        params: vec![
            Box::new(names(&singles)),
            Box::new(versions),
            Box::new(states),
        ],
        shows: Shows::Names(singles),
    }
}

fn change_one(single: Single<'_>) -> Step<'_> {
    let Single { change, state, .. } = single;
    Step {
        kind: Kind::Change,
        params: vec![
            Box::new(&*change.name),
            Box::new(number(change.version)),
            Box::new(state),
        ],
        shows: Shows::One(single),
    }
}

fn change_many(singles: Vec<Single<'_>>) -> Step<'_> {
    let versions: Vec<i64> = singles
        .iter()
        .map(|single| number(single.change.version))
        .collect();
    let states: Vec<&[u8]> = singles.iter().map(|single| single.state).collect();
    Step {
        kind: Kind::ChangeMany,
        params: vec![
            Box::new(names(&singles)),
            Box::new(versions),
            Box::new(states),
        ],
        shows: Shows::Names(singles),
    }
}

/// Adds the statements of a commit of several records, or of none.
fn joint<'a>(
    at: usize,
    changes: &'a [Change],
    draw: &mut impl FnMut() -> u64,
    steps: &mut Vec<Step<'a>>,
) {
    let absent: Vec<&[u8]> = changes
        .iter()
        .filter(|one| one.version == 0)
        .map(|one| &*one.name)
        .collect();
    if !absent.is_empty() {
        let drawn: Vec<i64> = absent.iter().map(|_| number(draw())).collect();
        steps.push(Step {
            kind: Kind::Place,
            params: vec![Box::new(absent), Box::new(drawn)],
            shows: Shows::Nothing,
        });
    }
    let next = |change: &Change| match (&change.state, change.version) {
        (None, version) => version,
        (Some(_), 0) => draw(),
        (Some(_), version) => version.saturating_add(1),
    };
    let versions: Vec<u64> = changes.iter().map(next).collect();
    let all: Vec<&[u8]> = changes.iter().map(|change| &*change.name).collect();
    let expected: Vec<i64> = changes
        .iter()
        .map(|change| number(change.version))
        .collect();
    let next: Vec<i64> = versions.iter().map(|version| number(*version)).collect();
    let states: Vec<Option<&[u8]>> = changes
        .iter()
        .map(|change| change.state.as_deref())
        .collect();
    let changed = states.iter().flatten().count();
    steps.push(Step {
        kind: Kind::Joint,
        params: vec![
            Box::new(all),
            Box::new(expected),
            Box::new(next),
            Box::new(states),
        ],
        shows: Shows::Joint {
            number: at,
            changed,
            versions,
        },
    });
}

impl<'a> Step<'a> {
    /// The statements that execute the commits of this statement without those whose rows are locked. Called after the
    /// server has refused this statement because a row was locked.
    pub(crate) fn without_locked(self) -> Vec<Step<'a>> {
        match (self.kind, self.shows) {
            (Kind::ChangeMany, Shows::Names(singles)) => {
                let kind = Kind::ChangeFree;
                let step = change_many(singles);
                vec![Step { kind, ..step }]
            }
            // A name that another client is just creating can be neither seen nor skipped.
            (Kind::Create, Shows::Names(singles)) if singles.len() > 1 => singles
                .into_iter()
                .map(|single| create(vec![single]))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Reads the outcome of each commit from the answer of this statement, and stores it in `outcomes`.
    pub(crate) fn read(
        self,
        rows: &[Row],
        outcomes: &mut [Option<Committed>],
    ) -> Result<(), Fault> {
        if matches!(self.shows, Shows::Nothing) {
            return Ok(());
        }
        let row = rows.first().ok_or_else(unreadable)?;
        let mut set = |number: usize, done: bool, versions: Vec<u64>| {
            let committed = if done {
                Committed::Done(versions)
            } else {
                Committed::Stale
            };
            outcomes[number] = Some(committed);
        };
        match self.shows {
            Shows::Nothing => {}
            Shows::Version(number, expected) => {
                let version =
                    column::<Option<i64>>(row, 2)?.and_then(|version| u64::try_from(version).ok());
                set(number, version.unwrap_or(0) == expected, vec![expected]);
            }
            Shows::One(single) => {
                let version = column::<Option<i64>>(row, 2)?;
                set(single.number, version.is_some(), vec![single.next]);
            }
            Shows::Names(singles) => {
                let done: HashSet<Vec<u8>> = column::<Vec<Vec<u8>>>(row, 2)?.into_iter().collect();
                for single in singles {
                    set(
                        single.number,
                        done.contains(&*single.change.name),
                        vec![single.next],
                    );
                }
            }
            Shows::Joint {
                number,
                changed,
                versions,
            } => {
                let fit = column::<bool>(row, 2)?;
                let count = usize::try_from(column::<i64>(row, 3)?).map_err(|_| unreadable())?;
                if fit && count != changed {
                    let why = "the server applied only part of a commit: run `quorate doctor` to see what is wrong \
                               with its tables";
                    return Err(Fault::Server(why.into()));
                }
                set(number, fit, versions);
            }
        }
        Ok(())
    }
}

/// A column of a row.
pub(crate) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    at: usize,
) -> Result<T, Fault> {
    row.try_get(at).map_err(|_| unreadable())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, version: u64, state: Option<&str>) -> Change {
        let state = state.map(|state| state.as_bytes().to_vec());
        let name = name.as_bytes().into();
        Change {
            name,
            version,
            state,
        }
    }

    fn kinds(commits: &[Vec<Change>]) -> Vec<Kind> {
        let commit = |changes: &Vec<Change>| {
            let changes = changes.clone();
            Commit {
                changes,
                ..Commit::default()
            }
        };
        let commits: Vec<Commit> = commits.iter().map(commit).collect();
        steps(&commits, || 7).iter().map(|step| step.kind).collect()
    }

    #[test]
    fn batch_becomes_one_statement_per_kind_of_commit() {
        let one = vec![change("a", 1, Some("s"))];
        let other = vec![change("b", 2, Some("s"))];
        let new = vec![change("c", 0, Some("s"))];
        let check = vec![change("d", 4, None)];
        assert_eq!(kinds(std::slice::from_ref(&one)), [Kind::Change]);
        assert_eq!(kinds(&[one.clone(), other.clone()]), [Kind::ChangeMany]);
        assert_eq!(
            kinds(&[one.clone(), new.clone(), check.clone()]),
            [Kind::Check, Kind::Create, Kind::Change]
        );
        let both = [one, other].concat();
        assert_eq!(kinds(std::slice::from_ref(&both)), [Kind::Joint]);
        let with_new = [both, new].concat();
        assert_eq!(kinds(&[with_new]), [Kind::Place, Kind::Joint]);
        assert_eq!(kinds(&[]), []);
    }
}
