//! Where core's messages go: to the `log` crate with feature `log`, to `defmt` with feature
//! `defmt`, to both, or nowhere, which is the default. `defmt` is for devices without an operating
//! system: on a host nothing links with its symbols, so the feature does nothing there.
//!
//! `trace! debug! info! warn! error!` take the arguments of `format_args!`. defmt could take the values and
//! format them on the host, but then every type would have to implement defmt's trait. So defmt gets the
//! finished text, and one line of code serves both.

macro_rules! levels {
    ($dollar:tt $($level:ident)+) => { $(
        #[allow(unused_macros, reason = "each level is there whether or not a message has it")]
        macro_rules! $level {
            ($dollar($arg:tt)+) => {{
                // With any features the arguments are type-checked and count as used.
                if false {
                    let _ = ::core::format_args!($dollar($arg)+);
                }
                #[cfg(feature = "log")]
                ::log::$level!($dollar($arg)+);
                #[cfg(all(feature = "defmt", any(target_os = "none", defmt_on_host)))]
                ::defmt::$level!(
                    "{}",
                    ::defmt::Display2Format(&::core::format_args!($dollar($arg)+))
                );
            }};
        }
    )+ };
}

levels! { $ trace debug info warn error }

#[cfg(test)]
mod tests {
    #[cfg_attr(not(feature = "log"), expect(dead_code, reason = "it only has to compile"))]
    fn log_at_every_level() {
        let (depth, shown) = (256, Some("x"));
        trace!("plain");
        debug!("{} of {depth}", 3);
        info!("{shown:?}");
        warn!("{0:#x} {0}", depth);
        error!("{name}", name = shown.unwrap_or_default());
    }

    #[cfg(feature = "log")]
    #[test]
    fn messages_reach_the_log_crate_at_their_level() {
        extern crate std;
        use std::string::{String, ToString};
        use std::sync::Mutex;
        use std::vec::Vec;

        struct Capture(Mutex<Vec<(log::Level, String)>>);
        impl log::Log for Capture {
            fn enabled(&self, _: &log::Metadata<'_>) -> bool {
                true
            }
            fn log(&self, record: &log::Record<'_>) {
                self.0.lock().unwrap().push((record.level(), record.args().to_string()));
            }
            fn flush(&self) {}
        }
        static CAPTURE: Capture = Capture(Mutex::new(Vec::new()));

        log::set_logger(&CAPTURE).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        log_at_every_level();
        let messages: [(log::Level, &str); 5] = [
            (log::Level::Trace, "plain"),
            (log::Level::Debug, "3 of 256"),
            (log::Level::Info, "Some(\"x\")"),
            (log::Level::Warn, "0x100 256"),
            (log::Level::Error, "x"),
        ];
        // Other tests may log meanwhile.
        let kept = CAPTURE.0.lock().unwrap();
        for (level, text) in messages {
            assert!(kept.contains(&(level, text.to_string())), "{level} {text}");
        }
    }
}
