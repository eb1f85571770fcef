//! NCCL's context of a communicator: its settings for its connections.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use invar::{InForce, Settings, Source};

use crate::abi::{Code, CommConfig, TRAFFIC_CLASS_UNDEF};
use crate::outcome::{Failed, misused};

/// Offset that marks a context's value; the rest of the value is the communicator's traffic class.
const CONTEXT: usize = 1 << 16;

/// Time limit for making a connection. NCCL calls `accept` once other ranks have come to the same call of their
/// programs, and waits for them without a limit. A host that is silent for long still fails the connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(86_400);

const SERVICE_LEVEL_MAX: u8 = 15;

/// A communicator's settings for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// The traffic class, unless `NCCL_IB_TC` is set.
    traffic_class: Option<u8>,
}

impl Context {
    pub(crate) fn new(config: Option<&CommConfig>) -> Result<Self, Failed> {
        let class = config.map_or(TRAFFIC_CLASS_UNDEF, |config| config.traffic_class);
        if class == TRAFFIC_CLASS_UNDEF {
            return Ok(Context { traffic_class: None });
        }
        let Ok(class) = u8::try_from(class) else {
            log::warn!("traffic class {class}: must be a number from 0 to 255");
            return Err(Failed(Code::INVALID_USAGE));
        };
        Ok(Context { traffic_class: Some(class) })
    }

    pub(crate) fn to_ptr(self) -> *mut c_void {
        let class = self.traffic_class.map_or(0, |class| usize::from(class) + 1);
        ptr::without_provenance_mut(CONTEXT | class)
    }

    pub(crate) fn from_ptr(context: *mut c_void) -> Result<Self, Failed> {
        match context.addr().wrapping_sub(CONTEXT) {
            0 => Ok(Context { traffic_class: None }),
            class @ 1..=0x100 => Ok(Context { traffic_class: Some((class - 1) as u8) }),
            _ => Err(misused(format_args!("{context:p} is no context of this plugin"))),
        }
    }

    /// Returns the settings of a connection in this context. Variables that the user has set stay.
    pub(crate) fn apply(self, settings: &Settings) -> Settings {
        let (mut applied, values) = (settings.clone(), settings.in_force());
        let is_free = |name| is_free(&values, name);
        // As NCCL, which takes a communicator's class for the service level, too.
        if let Some(class) = self.traffic_class {
            if is_free("NCCL_IB_TC") {
                applied = applied.traffic_class(class);
            }
            if is_free("NCCL_IB_SL") && class <= SERVICE_LEVEL_MAX {
                applied = applied.service_level(class);
            }
        }
        if is_free("INVAR_CONNECT_TIMEOUT_MS") {
            applied = applied.connect_timeout(CONNECT_WITHIN);
        }
        applied
    }
}

/// Whether the user has left a variable unset, or has set -1.
pub(crate) fn is_free(values: &[InForce], name: &str) -> bool {
    let of = values.iter().find(|of| of.info.name == name);
    of.is_some_and(|of| of.source == Source::Default || of.value == "-1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_communicators_class_and_nccls_patience_hold_where_the_user_has_set_nothing() {
        let applied = |class, set: &[(&'static str, &str)]| {
            let of =
                |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            let settings =
                Context { traffic_class: class }.apply(&Settings::from_lookup(of).unwrap());
            let value = |name| {
                let all = settings.in_force();
                all.iter().find(|of| of.info.name == name).unwrap().value.clone()
            };
            ["NCCL_IB_TC", "NCCL_IB_SL", "INVAR_CONNECT_TIMEOUT_MS"].map(value)
        };
        assert_eq!(applied(None, &[]), ["0", "0", "86400000"]);
        assert_eq!(applied(Some(5), &[]), ["5", "5", "86400000"]);
        assert_eq!(applied(Some(106), &[("NCCL_IB_SL", "-1")]), ["106", "-1", "86400000"]);
        let set = [("NCCL_IB_TC", "0"), ("NCCL_IB_SL", "3"), ("INVAR_CONNECT_TIMEOUT_MS", "30000")];
        assert_eq!(applied(Some(5), &set), ["0", "3", "30000"]);
    }
}
