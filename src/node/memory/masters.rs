//! Masters in memory for tests in which several `Redlock`s use the same masters.

use std::ops::Deref;
use std::sync::Arc;

use super::MemoryNode;
use crate::node::Node;

/// Masters in memory that several `Redlock`s of a test share. Each of these `Redlock`s acts as a separate process. A
/// clone of `Masters` refers to the same masters.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use quorate::Redlock;
/// use quorate::node::memory::Condition;
/// use quorate::testing::Masters;
///
/// let masters = Masters::new(3);
/// let here = Redlock::builder().in_memory_on(&masters).build()?;
/// let there = Redlock::builder().in_memory_on(&masters).build()?;
///
/// let guard = here.acquire("nightly").await?;
/// assert!(there.try_acquire("nightly").await?.acquired().is_none());
///
/// masters[0].set_condition(Condition::Down);
/// assert!(guard.extend(std::time::Duration::from_secs(5)).await.is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Masters(Vec<MemoryNode>);

impl Masters {
    /// Creates `masters` empty masters with the names `memory-1`, `memory-2` and so on.
    pub fn new(masters: usize) -> Self {
        let name = |n| MemoryNode::new(&format!("memory-{n}"));
        Self((1..=masters).map(name).collect())
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<dyn Node>> {
        let node = |node: &MemoryNode| Arc::new(node.clone()) as Arc<dyn Node>;
        self.0.iter().map(node).collect()
    }
}

impl Deref for Masters {
    type Target = [MemoryNode];

    fn deref(&self) -> &[MemoryNode] {
        &self.0
    }
}
