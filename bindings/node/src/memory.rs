//! Masters in memory, for tests of the users' code.

use napi::bindgen_prelude::{Error, Result};
use napi_derive::napi;
use quorate_bindings::quorate::testing::{Condition, Masters, MemoryNode};

/// The largest number of masters.
const MAX_MASTERS: u32 = 64;

/// Masters in memory that several `Redlock`s can share.
#[napi]
pub struct NativeMemory {
    pub(crate) masters: Masters,
}

#[napi]
impl NativeMemory {
    #[napi(constructor)]
    pub fn new(masters: u32) -> Result<Self> {
        if !(1..=MAX_MASTERS).contains(&masters) {
            let message =
                format!("{masters} masters in memory: the number must be 1 to {MAX_MASTERS}");
            return Err(Error::from_reason(message));
        }
        let masters = Masters::new(masters as usize);
        Ok(Self { masters })
    }

    #[napi]
    pub fn set(&self, master: u32, condition: String) -> Result<()> {
        let condition = match condition.as_str() {
            "up" => Condition::Up,
            "down" => Condition::Down,
            "mute" => Condition::Mute,
            other => {
                let message =
                    format!("condition {other:?} is unknown: use \"up\", \"down\" or \"mute\"");
                return Err(Error::from_reason(message));
            }
        };
        self.master(master)?.set_condition(condition);
        Ok(())
    }

    #[napi]
    pub fn forget(&self, master: u32) -> Result<()> {
        self.master(master)?.forget();
        Ok(())
    }
}

impl NativeMemory {
    fn master(&self, index: u32) -> Result<&MemoryNode> {
        let no_master = || {
            let masters = self.masters.len();
            Error::from_reason(format!(
                "there is no master {index}: the first of {masters} masters has the number 0"
            ))
        };
        self.masters.get(index as usize).ok_or_else(no_master)
    }
}
