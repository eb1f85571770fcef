//! The files of every package, and where each kind of package puts them.

use anyhow::Result;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::archive::gzip;
use crate::elf::Needs;
use crate::tree::{File, Tree};

/// The file that NCCL opens for `NCCL_NET_PLUGIN=invar`.
pub(crate) const PLUGIN: &str = "libnccl-net-invar.so";
/// The library of `invar run`, from the prefix. Loaders do not look into its folder, unless `invar run` tells them
/// to. Then they find the library by the name that NCCL asks for.
pub(crate) const VERBS: &str = "lib/invar/libibverbs.so";
/// One line about Invar, for registries of packages.
pub(crate) const SUMMARY: &str = "NCCL's network transport, rebuilt in Rust: plugin and command";
/// A paragraph about Invar, in lines for registries of packages.
pub(crate) const DESCRIPTION: &str = "\
Invar rebuilds NCCL's InfiniBand/RoCE transport. The package has the plugin
that NCCL loads, and the command invar, which measures the network and shows
its devices. Hosts without RDMA hardware use a RoCEv2 NIC in software or TCP.";
pub(crate) const LICENCE: &str = "MIT OR Apache-2.0";

/// The content of all packages.
pub(crate) struct Product {
    pub(crate) version: String,
    /// The time of all files, in seconds since 1970.
    pub(crate) time: u64,
    /// The repository's address on the web.
    pub(crate) homepage: String,
    pub(crate) command: Vec<u8>,
    pub(crate) plugin: Vec<u8>,
    /// The native module of the Python package.
    pub(crate) module: Vec<u8>,
    /// The `libibverbs.so.1` of `invar run`.
    pub(crate) verbs: Vec<u8>,
    /// The libraries that command and plugin need.
    pub(crate) needs: Needs,
    /// Texts for people, by file name: licences, those of dependencies, the changelog, and the pages and pictures of
    /// `docs/`.
    pub(crate) texts: Vec<(String, Vec<u8>)>,
    /// The definition of the command's arguments.
    pub(crate) definition: clap::Command,
}

/// How a system arranges files.
pub(crate) struct Layout {
    /// The directory of all files, with a slash at its end, or empty.
    pub(crate) prefix: &'static str,
    /// The loader's directory of libraries, below the prefix.
    pub(crate) libraries: &'static str,
    /// The directory of zsh's completions, below the prefix.
    pub(crate) zsh: &'static str,
    /// Whether manual pages are compressed.
    pub(crate) gzip_manuals: bool,
}

impl Product {
    /// All files of a package in this layout.
    pub(crate) fn tree(&self, layout: &Layout) -> Result<Tree> {
        let Layout { prefix, libraries, zsh, gzip_manuals } = layout;
        let mut tree = Tree::default();
        let command = File { content: self.command.clone(), executable: true };
        tree.add(format!("{prefix}bin/invar"), command)?;
        tree.add_data(format!("{prefix}{libraries}/{PLUGIN}"), self.plugin.clone())?;
        tree.add_data(format!("{prefix}{VERBS}"), self.verbs.clone())?;
        for (name, page) in self.manuals()? {
            let (name, page) =
                if *gzip_manuals { (name + ".gz", gzip(&page)?) } else { (name, page) };
            tree.add_data(format!("{prefix}share/man/man1/{name}"), page)?;
        }
        for (shell, path) in [
            (Shell::Bash, "share/bash-completion/completions/invar"),
            (Shell::Fish, "share/fish/vendor_completions.d/invar.fish"),
            (Shell::Zsh, &format!("{zsh}/_invar")),
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut self.definition.clone(), "invar", &mut script);
            tree.add_data(format!("{prefix}{path}"), script)?;
        }
        for (name, text) in &self.texts {
            tree.add_data(format!("{prefix}share/doc/invar/{name}"), text.clone())?;
        }
        Ok(tree)
    }

    /// The manual pages of the command and its subcommands, by file name.
    fn manuals(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut definition = self.definition.clone().disable_help_subcommand(true);
        // Gives each subcommand the name of its page, such as `invar-perf`.
        definition.build();
        let mut pages = Vec::new();
        let mut left = vec![definition];
        while let Some(definition) = left.pop() {
            left.extend(definition.get_subcommands().filter(|c| !c.is_hide_set()).cloned());
            let manual = Man::new(definition).source(format!("invar {}", self.version));
            let mut page = Vec::new();
            manual.render(&mut page)?;
            pages.push((manual.get_filename(), page));
        }
        Ok(pages)
    }
}
