//! The C library that `packaging/release` chooses, on machines whose Rust is a pair of scripts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::home::{CSALOCK, write};
use crate::in_project;

const ARCH: &str = std::env::consts::ARCH;

/// A machine on which rustc knows these libraries, and cargo writes its arguments down and builds nothing.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        fs::create_dir(machine.path("bin")).unwrap();
        // All programs of the system but those of a C library or Rust.
        for entry in fs::read_dir("/usr/bin").unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            if !["cargo", "rustc", "musl-gcc"].iter().any(|left_out| name == *left_out) {
                symlink(entry.path(), machine.path("bin").join(name)).unwrap();
            }
        }
        machine.program(
            "rustc",
            &format!(
                r#"case "$*" in
                "--print sysroot") echo {root}/sysroot ;;
                "--print target-libdir --target "*) echo {root}/$4 ;;
                *) exit 1 ;;
                esac"#,
                root = machine.0.path().display()
            ),
        );
        machine.program(
            "cargo",
            &format!(
                r#"case " $* " in
                *" build "*)
                    echo "$CARGO_BUILD_TARGET ${{RUSTC_BOOTSTRAP:-0}} $*" >> {root}/builds
                    mkdir -p {root}/target/$CARGO_BUILD_TARGET/release
                    cp {root}/program-$CARGO_BUILD_TARGET {root}/target/$CARGO_BUILD_TARGET/release/csalock
                    ;;
                *)
                    # The build of the tests has fetched the crates for the host only.
                    for word; do
                        shift
                        set -- "$@" "$(echo "$word" | sed 's/-linux-musl$/-linux-gnu/')"
                    done
                    PATH='{real}' exec cargo "$@"
                    ;;
                esac"#,
                root = machine.0.path().display(),
                real = std::env::var("PATH").unwrap()
            ),
        );
        // The beginnings of programs are enough here. The header alone says the architecture; after it glibc has a note.
        let program = fs::read(CSALOCK).unwrap();
        fs::write(machine.path(&format!("program-{ARCH}-unknown-linux-musl")), &program[..64]).unwrap();
        let note = *b"\x04\0\0\0\x10\0\0\0\x01\0\0\0GNU\0";
        fs::write(machine.path(&format!("program-{ARCH}-unknown-linux-gnu")), [&program[..64], &note].concat())
            .unwrap();
        machine
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        write(&path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Installs the standard library for the target with this C library.
    fn install_target(&self, libc: &str) {
        write(&self.path(&format!("{ARCH}-unknown-linux-{libc}/libstd-1.rlib")), "");
    }

    fn install_sources(&self) {
        write(&self.path("sysroot/lib/rustlib/src/rust/library/Cargo.lock"), "");
    }

    fn install_musl_gcc(&self) {
        self.program("musl-gcc", "exec false");
    }

    fn release(&self) -> Output {
        let mut release = Command::new(in_project("packaging/release"));
        release.arg(ARCH).arg("--to").arg(self.path("packages"));
        release
            .env("PATH", self.path("bin"))
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("CARGO_NET_OFFLINE", "true");
        release.env("SOURCE_DATE_EPOCH", "1700000000").env_remove("RUSTC_BOOTSTRAP").output().unwrap()
    }

    /// Releases. Returns stderr and the line that cargo wrote down.
    fn released(&self) -> (String, String) {
        let done = self.release();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{said}");
        (said, fs::read_to_string(self.path("builds")).unwrap())
    }

    fn licences(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let name = format!("csalock-{version}-{ARCH}-linux");
        let mut tar = Command::new("tar");
        tar.arg("-xzOf").arg(self.path("packages").join(format!("{name}.tar.gz")));
        let done = tar.arg(format!("{name}/share/doc/csalock/third-party-licences")).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    }
}

fn is_build_of(line: &str, libc: &str, bootstrap: u8, options: &str) -> bool {
    let target = format!("{ARCH}-unknown-linux-{libc}");
    line.starts_with(&format!("{target} {bootstrap} {options}--config target.{target}.rustflags"))
        && line.ends_with(" build --quiet --release --locked --bin csalock\n")
}

#[test]
fn a_release_is_built_for_musl_with_the_target_of_rustup() {
    let machine = Machine::new();
    for libc in ["gnu", "musl"] {
        machine.install_target(libc);
    }
    machine.install_sources();
    machine.install_musl_gcc();
    let (said, build) = machine.released();
    assert_eq!(said, "");
    assert!(is_build_of(&build, "musl", 0, ""), "{build}");
    assert!(machine.licences().contains("\n    Parts of musl: MIT"), "{}", machine.licences());
}

#[test]
fn a_release_is_built_for_musl_with_the_sources_of_the_standard_library() {
    let machine = Machine::new();
    machine.install_target("gnu");
    machine.install_sources();
    machine.install_musl_gcc();
    let (said, build) = machine.released();
    assert_eq!(said, "");
    let runtime = machine.path("target/musl").join(ARCH);
    let options = "-Zbuild-std=std,panic_abort --config target.";
    let options = format!("{options}{ARCH}-unknown-linux-musl.rustflags=['-Lnative={}'] ", runtime.display());
    assert!(is_build_of(&build, "musl", 1, &options), "{build}");
    assert!(defines_dl_find_object(&runtime.join("libunwind.a")));
    for file in ["rcrt1.o", "libc.a"] {
        assert_eq!(
            fs::read_link(runtime.join(file)).unwrap(),
            Path::new(&format!("/usr/lib/{ARCH}-linux-musl/{file}"))
        );
    }
}

/// Whether gcc's unwinder can be linked with musl.
fn defines_dl_find_object(library: &Path) -> bool {
    let done = Command::new("nm").arg(library).output().unwrap();
    String::from_utf8(done.stdout).unwrap().lines().any(|line| line.ends_with(" T _dl_find_object"))
}

#[test]
fn a_release_without_the_target_is_for_glibc_and_one_line_says_so() {
    let machine = Machine::new();
    machine.install_target("gnu");
    let (said, build) = machine.released();
    let target = format!("{ARCH}-unknown-linux-musl");
    assert_eq!(
        said,
        format!(
            "packaging/release: {ARCH}: a glibc program; one for musl needs the Rust target {target} (rustup target add \
             {target}; Debian: cargo-web and rust-web-src), and the C compiler musl-gcc (Debian: musl-tools)\n"
        )
    );
    assert!(is_build_of(&build, "gnu", 0, ""), "{build}");
    assert!(machine.licences().contains("\n    Parts of the GNU C library: LGPL-2.1"), "{}", machine.licences());
}

#[test]
fn a_wrong_call_names_the_fault() {
    for (words, said) in [
        (&[][..], "a command for cargo is missing, for example build"),
        (&["--for"], "--for: an architecture is missing"),
        (&["--for", "riscv64", "build"], "riscv64: not an architecture that can be built; expected x86_64 or aarch64"),
    ] {
        let done = Command::new(in_project("packaging/musl")).args(words).output().unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert_eq!(String::from_utf8(done.stderr).unwrap(), format!("packaging/musl: {said}\n"));
    }
}
