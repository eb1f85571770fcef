//! The flags that choose ports.

use std::process::Command;

use invar::{PortRange, Settings};

#[derive(clap::Args)]
pub(crate) struct Ports {
    /// UDP port of the software NIC, or a range FIRST-LAST for it to choose from (INVAR_SOFT_PORT)
    #[arg(long, value_name = "PORTS", value_parser = parse)]
    soft_port: Option<PortRange>,

    /// Range FIRST-LAST of TCP ports for listeners (INVAR_PORT_RANGE)
    #[arg(long, value_name = "PORTS", value_parser = parse)]
    port_range: Option<PortRange>,
}

impl Ports {
    /// Puts the flags over `settings`.
    pub(crate) fn apply(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        if let Some(ports) = self.soft_port {
            settings = settings.soft_ports(ports);
        }
        if let Some(ports) = self.port_range {
            settings = settings.listen_ports(ports);
        }
        settings
    }

    /// Passes the flags to another process of this command.
    pub(crate) fn pass_on(&self, command: &mut Command) {
        let flags = [("--soft-port", self.soft_port), ("--port-range", self.port_range)];
        for (flag, ports) in flags {
            if let Some(ports) = ports {
                command.args([flag, &ports.to_string()]);
            }
        }
    }
}

fn parse(text: &str) -> Result<PortRange, &'static str> {
    PortRange::parse(text)
        .ok_or("must be a port, a range like 20000-20100, or 0 (any that is free)")
}
