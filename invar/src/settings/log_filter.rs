//! Which messages are logged: by level, and by NCCL's subsystems.

use invar_core::param::LogLevel;
use log::{Level, LevelFilter};

/// The messages that a program's logger is to print. NCCL's subsystems choose among them, but warnings and
/// errors always pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    level: LogLevel,
    /// Value of `NCCL_DEBUG_SUBSYS`.
    subsystems: String,
}

/// NCCL's subsystems, and the modules that belong to each. Of several that fit, the first counts.
const SUBSYSTEMS: [(&str, &[&str]); 8] = [
    ("SHM", &["invar_linux::shm"]),
    ("PROXY", &["invar_linux::proxy", "invar_core::proxy"]),
    ("BOOTSTRAP", &["invar_linux::rendezvous", "invar_core::rendezvous", "invar::hub"]),
    ("COLL", &["invar::communicator", "invar_core::coll"]),
    ("ENV", &["invar::settings", "invar_linux::env"]),
    ("REG", &["invar::memory", "invar::device::registration"]),
    ("INIT", &["invar::device", "invar::metrics", "invar_verbs::discover", "invar_verbs::port"]),
    ("NET", &["invar"]),
];

impl LogFilter {
    pub(super) fn new(level: LogLevel, subsystems: &str) -> Self {
        LogFilter { level, subsystems: subsystems.to_owned() }
    }

    /// The most detailed level, for [`log::set_max_level`].
    pub fn level(&self) -> LevelFilter {
        match self.level {
            LogLevel::Off => LevelFilter::Off,
            LogLevel::Error => LevelFilter::Error,
            LogLevel::Warn => LevelFilter::Warn,
            LogLevel::Info => LevelFilter::Info,
            LogLevel::Debug => LevelFilter::Debug,
            LogLevel::Trace => LevelFilter::Trace,
        }
    }

    /// Whether a message of this level and of the module `target` is to be printed.
    pub fn passes(&self, level: Level, target: &str) -> bool {
        level <= self.level() && (level <= Level::Warn || self.has(log_subsystem(target)))
    }

    fn has(&self, subsystem: &str) -> bool {
        let (is_inverted, list) = match self.subsystems.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, self.subsystems.as_str()),
        };
        let named =
            |word: &str| word.eq_ignore_ascii_case(subsystem) || word.eq_ignore_ascii_case("ALL");
        list.is_empty() || list.split(',').any(|word| named(word.trim())) != is_inverted
    }
}

/// The subsystem of NCCL to which the messages of a module belong.
pub fn log_subsystem(target: &str) -> &'static str {
    let is_of = |module: &&str| target.starts_with(*module);
    let found = SUBSYSTEMS.iter().find(|(_, modules)| modules.iter().any(is_of));
    found.map_or("NET", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_belongs_to_one_subsystem() {
        for (target, expected) in [
            ("invar_core::comm::base", "NET"),
            ("invar::device::rails", "INIT"),
            ("invar::communicator::net", "COLL"),
            ("invar_linux::rendezvous::hub", "BOOTSTRAP"),
            ("invar::settings::remarks", "ENV"),
            ("invar_linux::shm::share", "SHM"),
            ("somebody", "NET"),
        ] {
            assert_eq!(log_subsystem(target), expected, "{target}");
        }
    }

    #[test]
    fn subsystems_choose_among_messages_and_warnings_always_pass() {
        let passes =
            |list, level, target| LogFilter::new(LogLevel::Info, list).passes(level, target);
        let (net, init) = ("invar_core::comm", "invar::device");
        assert!(passes("", Level::Info, net) && passes("all", Level::Info, net));
        assert!(passes("INIT,NET", Level::Info, net) && !passes("init", Level::Info, net));
        assert!(passes("^INIT", Level::Info, net) && !passes("^INIT,COLL", Level::Info, init));
        assert!(passes("COLL", Level::Warn, net) && !passes("", Level::Debug, net));
    }
}
