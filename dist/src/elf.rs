//! Reads what a binary needs of the system that loads it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use object::Endianness;
use object::elf::{DT_NEEDED, EM_X86_64, FileHeader64};
use object::read::elf::{Dyn, FileHeader};

/// The libraries that a manylinux wheel may need, as far as Invar needs them.
const LIBRARIES: [&str; 4] = ["ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1", "libm.so.6"];

/// Libraries, and versions of their symbols.
#[derive(Default, Debug)]
pub(crate) struct Needs {
    pub(crate) libraries: BTreeSet<String>,
    /// A library and the version of a symbol, such as `GLIBC_2.34`.
    pub(crate) versions: BTreeSet<(String, String)>,
}

/// A version of glibc.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Glibc {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Needs {
    /// Adds the needs of an x86-64 binary.
    pub(crate) fn add(&mut self, binary: &[u8]) -> Result<()> {
        let header = FileHeader64::<Endianness>::parse(binary).context("no 64-bit ELF file")?;
        let endian = header.endian()?;
        ensure!(header.e_machine.get(endian) == EM_X86_64, "the binary is not for x86-64");
        let sections = header.sections(endian, binary)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).context("a name is no UTF-8");
        if let Some((entries, strings)) = sections.dynamic(endian, binary)? {
            let strings = sections.strings(endian, binary, strings)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
                self.libraries.insert(text(entry.string(endian, strings)?)?);
            }
        }
        if let Some((mut needs, strings)) = sections.gnu_verneed(endian, binary)? {
            let strings = sections.strings(endian, binary, strings)?;
            while let Some((need, mut symbols)) = needs.next()? {
                let library = text(need.file(endian, strings)?)?;
                while let Some(symbol) = symbols.next()? {
                    self.versions.insert((library.clone(), text(symbol.name(endian, strings)?)?));
                }
            }
        }
        Ok(())
    }

    /// Fails if the binaries need a library that not every Linux with glibc has.
    pub(crate) fn check_libraries(&self) -> Result<()> {
        for library in &self.libraries {
            ensure!(
                LIBRARIES.contains(&library.as_str()),
                "the binaries need {library}: packages promise to need only {}",
                LIBRARIES.join(", ")
            );
        }
        Ok(())
    }

    /// The oldest glibc that has every needed symbol.
    pub(crate) fn glibc(&self) -> Result<Glibc> {
        let of_glibc = self.versions.iter().filter_map(|(_, name)| name.strip_prefix("GLIBC_"));
        let mut newest = None;
        for version in of_glibc {
            newest = newest.max(Some(Glibc::parse(version)?));
        }
        newest.context("the binaries name no version of glibc")
    }
}

impl Glibc {
    /// Reads `2.34`, or `2.2.5`, whose last number says nothing to packages.
    fn parse(text: &str) -> Result<Glibc> {
        let mut numbers = text.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Glibc { major, minor }),
            _ => anyhow::bail!("GLIBC_{text} is no public version of glibc"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(library: &str, versions: &[&str]) -> Needs {
        let versions = versions.iter().map(|version| (library.to_owned(), (*version).to_owned()));
        Needs { libraries: BTreeSet::from([library.to_owned()]), versions: versions.collect() }
    }

    #[test]
    fn the_newest_symbol_decides_by_its_number() {
        let needs = needs("libc.so.6", &["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4", "GCC_3.0"]);
        assert_eq!(needs.glibc().unwrap(), Glibc { major: 2, minor: 34 });
    }

    #[test]
    fn a_private_symbol_is_refused() {
        let error = needs("libc.so.6", &["GLIBC_PRIVATE"]).glibc().unwrap_err().to_string();
        assert!(error.contains("GLIBC_PRIVATE"), "{error}");
    }

    #[test]
    fn a_library_that_hosts_may_lack_is_refused() {
        assert!(needs("libc.so.6", &[]).check_libraries().is_ok());
        let error = needs("libibverbs.so.1", &[]).check_libraries().unwrap_err().to_string();
        assert!(error.contains("libibverbs.so.1"), "{error}");
    }
}
