//! The sets of masters that the benchmark measures, and their labels in tables.

use std::str::FromStr;

use crate::backends::{self, Backend};

/// One set of masters that the benchmark measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quorum {
    pub(super) urls: Vec<String>,
    /// The number of masters of each kind as a label, for example `2 redis + 1 mysql`. `None` if the benchmark compares
    /// numbers of masters instead of kinds.
    pub(super) kinds: Option<String>,
}

impl Quorum {
    /// The set of the first `size` masters in `urls`, labelled by their number.
    pub(super) fn of_size(size: usize, urls: &[String]) -> Self {
        let urls = urls.iter().take(size).cloned().collect();
        Self { urls, kinds: None }
    }

    /// The set of all masters in `urls`, labelled by their kinds.
    pub(super) fn of_kinds(urls: Vec<String>) -> Self {
        let kinds: Vec<&dyn Backend> = urls.iter().map(|url| backends::of_url(url)).collect();
        let kinds = Some(describe_kinds(&kinds));
        Self { urls, kinds }
    }

    /// One set for each kind, with all masters of that kind, and one set with all masters. Empty if all masters are of
    /// one kind.
    pub(super) fn one_per_kind(urls: &[String]) -> Vec<Self> {
        let urls_of_kind = |kind: &'static dyn Backend| {
            let is_of_kind = move |url: &&String| backends::of_url(url) == kind;
            urls.iter().filter(is_of_kind).cloned()
        };
        let mut quorums: Vec<Self> = backends::ALL
            .into_iter()
            .map(|kind| Self::of_kinds(urls_of_kind(kind).collect()))
            .filter(|quorum| !quorum.urls.is_empty())
            .collect();
        if quorums.len() < 2 {
            return Vec::new();
        }
        quorums.push(Self::of_kinds(urls.to_vec()));
        quorums
    }

    pub(super) fn label(&self) -> String {
        let number = || self.urls.len().to_string();
        self.kinds.clone().unwrap_or_else(number)
    }
}

/// Describes the number of masters of each kind, for example `2 redis + 1 mysql`.
fn describe_kinds(kinds: &[&'static dyn Backend]) -> String {
    let parts: Vec<String> = backends::ALL
        .into_iter()
        .map(|kind| {
            (
                kind,
                kinds
                    .iter()
                    .filter(|other_kind| **other_kind == kind)
                    .count(),
            )
        })
        .filter(|(_, describe_kinds)| *describe_kinds > 0)
        .map(|(kind, describe_kinds)| format!("{describe_kinds} {}", kind.names().name))
        .collect();
    parts.join(" + ")
}

/// The kinds of the masters in one set: one value of `--nodes`, for example `redis,redis,mysql`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KindList(pub(super) Vec<&'static dyn Backend>);

impl FromStr for KindList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds: Result<Vec<&dyn Backend>, String> = text
            .split(',')
            .map(|name| {
                backends::of_name(name.trim()).ok_or_else(|| {
                    let names = backends::names_of_kinds();
                    format!("{name:?} is not a kind of master: give one of {names}")
                })
            })
            .collect();
        let kinds = kinds?;
        if kinds.len() > 9 {
            return Err("more than 9 masters in one set: give at most 9".to_owned());
        }
        Ok(Self(kinds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_kinds_of_masters_is_parsed_and_unknown_kinds_are_refused() {
        let kinds: KindList = "redis,mariadb, redis".parse().expect("kinds");
        assert_eq!(describe_kinds(&kinds.0), "2 redis + 1 mysql");
        for wrong in ["", "redis,", "oracle", "redis;mysql"] {
            assert!(wrong.parse::<KindList>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bench_measures_each_kind_of_masters_alone_and_then_all_together() {
        let urls = ["redis://a", "mysql://b/db", "redis://c"].map(str::to_owned);
        let labels: Vec<String> = Quorum::one_per_kind(&urls)
            .iter()
            .map(Quorum::label)
            .collect();
        assert_eq!(labels, ["2 redis", "1 mysql", "2 redis + 1 mysql"]);
        assert_eq!(Quorum::one_per_kind(&urls[..1]), []);
        assert_eq!(Quorum::of_size(2, &urls).label(), "2");
    }
}
