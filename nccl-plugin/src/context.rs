//! NCCL's context of a communicator: its settings for its connections.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use invar::{InForce, Settings, Source};

use crate::abi::{Code, CommConfig, TRAFFIC_CLASS_UNDEF};
use crate::outcome::{Failed, misused};

/// The low half of a context's value, which marks it. The high half is the communicator's traffic class.
const CONTEXT: u64 = 1 << 16;

/// Time limit for making a connection. NCCL calls `accept` once other ranks have come to the same call of their
/// programs, and waits for them without a limit. A host that is silent for long still fails the connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(86_400);

const SERVICE_LEVEL_MAX: u8 = 15;

/// A communicator's settings for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// The traffic class, unless `NCCL_IB_TC` is set. It may be out of range: NCCL disables a plugin for the whole
    /// process if `init` fails (`net.cc ncclNetPluginInit`), so a connection refuses such a class instead.
    traffic_class: c_int,
}

impl Context {
    pub(crate) fn new(config: Option<&CommConfig>) -> Self {
        let traffic_class = config.map_or(TRAFFIC_CLASS_UNDEF, |config| config.traffic_class);
        Context { traffic_class }
    }

    pub(crate) fn to_ptr(self) -> *mut c_void {
        let class = u64::from(self.traffic_class.cast_unsigned());
        ptr::without_provenance_mut((class << 32 | CONTEXT) as usize)
    }

    pub(crate) fn from_ptr(context: *mut c_void) -> Result<Self, Failed> {
        let value = context.addr() as u64;
        if value & u64::from(u32::MAX) != CONTEXT {
            return Err(misused(format_args!("{context:p} is no context of this plugin")));
        }
        Ok(Context { traffic_class: (value >> 32) as c_int })
    }

    /// Returns the settings of a connection in this context. Variables that the user has set stay.
    ///
    /// # Errors
    /// The communicator's traffic class is out of range.
    pub(crate) fn apply(self, settings: &Settings) -> Result<Settings, Failed> {
        let class = match self.traffic_class {
            TRAFFIC_CLASS_UNDEF => None,
            class => Some(u8::try_from(class).map_err(|_| {
                log::warn!("traffic class {class}: must be a number from 0 to 255");
                Failed(Code::INVALID_USAGE)
            })?),
        };
        let (mut applied, values) = (settings.clone(), settings.in_force());
        let is_free = |name| is_free(&values, name);
        // As NCCL, which takes a communicator's class for the service level, too.
        if let Some(class) = class {
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
        Ok(applied)
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
        let applied = |traffic_class, set: &[(&'static str, &str)]| {
            let of =
                |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            let settings = Settings::from_lookup(of).unwrap();
            let settings = Context { traffic_class }.apply(&settings).ok().expect("in range");
            let value = |name| {
                let all = settings.in_force();
                all.iter().find(|of| of.info.name == name).unwrap().value.clone()
            };
            ["NCCL_IB_TC", "NCCL_IB_SL", "INVAR_CONNECT_TIMEOUT_MS"].map(value)
        };
        assert_eq!(applied(TRAFFIC_CLASS_UNDEF, &[]), ["0", "0", "86400000"]);
        assert_eq!(applied(5, &[]), ["5", "5", "86400000"]);
        assert_eq!(applied(106, &[("NCCL_IB_SL", "-1")]), ["106", "-1", "86400000"]);
        let set = [("NCCL_IB_TC", "0"), ("NCCL_IB_SL", "3"), ("INVAR_CONNECT_TIMEOUT_MS", "30000")];
        assert_eq!(applied(5, &set), ["0", "3", "30000"]);
    }

    #[test]
    fn a_traffic_class_out_of_range_is_refused_by_the_connection_and_not_by_the_context() {
        for class in [256, 1000, c_int::MAX, -2, c_int::MIN] {
            let config = CommConfig { traffic_class: class };
            let context = Context::from_ptr(Context::new(Some(&config)).to_ptr()).ok().unwrap();
            assert_eq!(context, Context { traffic_class: class });
            let refused = context.apply(&Settings::default()).err().unwrap();
            assert_eq!(refused.0, Code::INVALID_USAGE, "{class}");
        }
    }
}
