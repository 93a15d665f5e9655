//! Reads the stored values (quotas and once-per-period records) without their locks, for display only.

use std::time::{Duration, SystemTime};

use super::record::Stored;
use super::value::parse_number;
use crate::keys::Family;
use crate::node::{NodeName, Request};
use crate::redlock::Redlock;

/// A stored value as the masters showed it at one moment: an element of the result of [`Redlock::glance_at_values`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenValue {
    /// The resource name of the lock that protects the value, without the key prefix.
    pub name: Vec<u8>,
    /// The masters that returned all names of their values, but not this one. They have lost the value.
    pub missing_on: Vec<NodeName>,
    /// The content that a majority of the masters showed.
    pub content: SeenContent,
}

/// The content of a [`SeenValue`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeenContent {
    /// A quota with this number of units left.
    Quota(u64),
    /// The record of a job that runs once per period: the start of the last recorded period, or `None` if no period was
    /// recorded.
    Once(Option<SystemTime>),
    /// No majority of the masters showed the same content, or the content is of another kind.
    Unknown,
}

impl SeenValue {
    /// A value with this name and this content that no master has lost, for tests of code that shows values.
    pub fn new(name: Vec<u8>, content: SeenContent) -> Self {
        Self {
            name,
            missing_on: Vec::new(),
            content,
        }
    }
}

impl Redlock {
    /// Shows the quotas and the records of jobs with the builder's key prefix, for display only. A value that is being
    /// written can be shown with its content before the write. To decide with a value, use
    /// [`Quota::left`](crate::Quota::left) or [`Once`](crate::Once), which read under the lock.
    ///
    /// Supported if all masters are Redis or Valkey servers; as for [`list_values`](Self::list_values).
    ///
    /// # Cancel safety
    ///
    /// Safe to drop at any point: nothing is changed.
    pub async fn glance_at_values(&self) -> Vec<SeenValue> {
        let mut seen = Vec::new();
        for value in self.list_values().await {
            let lock = self.core.coordinator.key(&value.name);
            let key = [Family::Value.key_prefix().as_bytes(), &lock].concat();
            let status = self.key_status(Request::Status { key: key.into() }).await;
            // The key of the value has the form of a lock key, so its bytes are where a lock has its holder.
            let states = status
                .nodes
                .iter()
                .filter_map(|node| node.state.as_ref().ok());
            let contents: Vec<_> = states
                .filter_map(|state| numbered_content(state.holder.as_deref()?))
                .collect();
            let content = content_of_majority(&contents, status.quorum);
            seen.push(SeenValue {
                name: value.name,
                missing_on: value.missing_on,
                content,
            });
        }
        seen
    }
}

/// The newest content that at least `quorum` masters show. Each element of `contents` is the fencing number of the
/// writer and the content, from one master.
fn content_of_majority(contents: &[(u64, SeenContent)], quorum: usize) -> SeenContent {
    let is_on_majority = |wanted: &&(u64, SeenContent)| {
        contents.iter().filter(|content| content == wanted).count() >= quorum
    };
    let shown = contents.iter().filter(is_on_majority);
    let newest = shown.max_by_key(|(number, _)| *number);
    newest.map_or(SeenContent::Unknown, |(_, content)| content.clone())
}

/// The fencing number and the content of a stored value from its first bytes, `NUMBER RUN KIND CONTENT`. `RUN` differs
/// between the masters. The note of a record can be cut off.
fn numbered_content(bytes: &[u8]) -> Option<(u64, SeenContent)> {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(4, ' ');
    let number = parse_number(parts.next()?)?;
    let (_run, kind, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let content = match kind {
        "quota" => SeenContent::Quota(parse_number(rest)?),
        "once" => {
            let since = Stored::read(rest.trim_end())?
                .last
                .map(Duration::from_millis);
            SeenContent::Once(since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)))
        }
        _ => return None,
    };
    Some((number, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_a_value_is_read_from_its_first_bytes() {
        let run = "a".repeat(40);
        let content_of = |rest: &str| numbered_content(format!("1721 {run} {rest}").as_bytes());
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        for (rest, content) in [
            ("quota 7", SeenContent::Quota(7)),
            ("once never", SeenContent::Once(None)),
            ("once 5000", SeenContent::Once(Some(start))),
            ("once 5000 {\"host\":\"a", SeenContent::Once(Some(start))),
            ("once 5000 ", SeenContent::Once(Some(start))),
        ] {
            assert_eq!(content_of(rest), Some((1721, content)), "{rest}");
        }
        for rest in ["quota -1", "quota 7 8", "quota", "once x", "other 7", ""] {
            assert_eq!(content_of(rest), None, "{rest}");
        }
        assert_eq!(numbered_content(b""), None);
    }

    #[tokio::test(start_paused = true)]
    async fn glance_shows_quotas_and_records_with_their_content() {
        let redlock = Redlock::in_memory(3);
        let created = redlock.quota("prizes").create(7).await;
        created.expect("every master must answer");
        let once = redlock.once("report", Duration::from_secs(60));
        once.create().await.expect("every master must answer");
        let expected = [
            SeenValue::new(b"prizes".to_vec(), SeenContent::Quota(7)),
            SeenValue::new(b"report".to_vec(), SeenContent::Once(None)),
        ];
        assert_eq!(redlock.glance_at_values().await, expected);
    }

    #[test]
    fn content_is_shown_only_if_a_majority_has_it() {
        let quota = |number, units| (number, SeenContent::Quota(units));
        let shown = |contents: &[_]| content_of_majority(contents, 2);
        assert_eq!(
            shown(&[quota(1, 7), quota(1, 7), quota(2, 6)]),
            SeenContent::Quota(7)
        );
        assert_eq!(
            shown(&[quota(1, 7), quota(2, 6), quota(2, 6)]),
            SeenContent::Quota(6)
        );
        assert_eq!(shown(&[quota(1, 7), quota(2, 7)]), SeenContent::Unknown);
        assert_eq!(shown(&[]), SeenContent::Unknown);
    }
}
