//! The second proof: a program without an operating system links invar-core. The linker may look only
//! for symbols that every freestanding program brings.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

use super::{FEATURE_SETS, Proof};

/// Symbols that the compiler refers to by itself. A freestanding program brings the first five. The
/// last two are for unwinding, which such a program switches off.
const COMPILERS_OWN: [&str; 7] =
    ["memcpy", "memmove", "memset", "memcmp", "bcmp", "rust_eh_personality", "_Unwind_Resume"];

/// Parts of the symbol names of C's and Rust's allocators.
const ALLOCATORS: [&str; 4] = ["__rust_alloc", "__rust_dealloc", "__rust_realloc", "malloc"];

pub(super) fn prove(proof: &Proof<'_>) -> Result<()> {
    for features in FEATURE_SETS {
        // nm does not work here. If a plugin for link-time optimisation is installed, nm reads the
        // bitcode in the toolchain's own objects and shows none of their symbols.
        let mut readelf = proof.shell.command("readelf --syms --wide");
        readelf.arg(proof.build(features, None)?);
        check(&proof.shell.read(readelf)?)
            .with_context(|| format!("with features [{features}]"))?;
    }
    Ok(())
}

/// Checks the symbols of the archive. `symbols` is the output of `readelf --syms --wide`. It has a line
/// for each symbol, with number, value, size, type, binding, visibility, section and name, among other
/// lines.
fn check(symbols: &str) -> Result<()> {
    let (mut defined, mut undefined) = (BTreeSet::new(), BTreeSet::new());
    for line in symbols.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, _, _, "GLOBAL" | "WEAK", _, section, name] = words[..] {
            if section == "UND" {
                undefined.insert(name)
            } else {
                defined.insert(name)
            };
        }
    }
    ensure!(
        defined.contains("invar_no_std_proof"),
        "readelf does not show the proof's own function"
    );
    let all = || defined.iter().chain(&undefined);
    if let Some(name) = all().find(|name| ALLOCATORS.iter().any(|part| name.contains(part))) {
        bail!("invar-core brings an allocator: {name}");
    }
    let needs: Vec<_> =
        undefined.difference(&defined).filter(|name| !COMPILERS_OWN.contains(name)).collect();
    ensure!(needs.is_empty(), "invar-core needs symbols that a bare machine lacks: {needs:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    const CLEAN: &str = "\nFile: libno_std_proof.a(one.o)\n\n\
        Symbol table '.symtab' contains 4 entries:\n\
        \x20  Num:    Value          Size Type    Bind   Vis      Ndx Name\n\
        \x20    0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND \n\
        \x20    1: 0000000000000000   158 FUNC    GLOBAL DEFAULT    3 invar_no_std_proof\n\
        \x20    2: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND core_panic\n\
        \x20    3: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND memcpy\n\
        \nFile: libno_std_proof.a(two.o)\n\
        \x20    1: 0000000000000000    32 FUNC    GLOBAL HIDDEN   275 core_panic\n";

    /// Checks [`CLEAN`] with one more symbol in `section`.
    fn with(section: &str, name: &str) -> anyhow::Result<()> {
        check(&format!(
            "{CLEAN}     2: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT {section} {name}\n"
        ))
    }

    #[test]
    fn takes_calls_within_the_archive_and_the_compilers_own() {
        check(CLEAN).unwrap();
    }

    #[test]
    fn refuses_allocators_whether_called_or_brought() {
        assert!(with("UND", "__rust_alloc").is_err());
        assert!(with("7", "_RNvCs1_7___rustc12___rust_alloc").is_err());
        assert!(with("UND", "malloc").is_err());
    }

    #[test]
    fn refuses_calls_to_an_operating_system() {
        let error = with("UND", "pthread_create").unwrap_err().to_string();
        assert!(error.contains("pthread_create"), "{error}");
    }

    #[test]
    fn refuses_an_archive_without_the_proof() {
        assert!(check("").is_err());
    }
}
