//! The archive and the Debian package that `packaging/release` makes, of the program that is tested.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::extent::{Extent, FOR_ALL, extent};
use crate::home::{CSALOCK, write};
use crate::links::targets;
use crate::page::{blocks, read};
use harness::{has, has_namespaces};

use crate::in_project;

/// A time for all files.
const DATE: &str = "1700000000";

/// Runs a program that must succeed.
fn run(command: &mut Command) -> Output {
    let done = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout.clone(), done.stderr.clone()].concat()).into_owned();
    assert!(done.status.success(), "{command:?}: {}\n{said}", done.status);
    done
}

/// Packs a program with the script of a checkout. Returns the paths that it prints.
fn pack(project: &Path, program: &Path, to: &Path) -> Vec<PathBuf> {
    let mut release = Command::new(project.join("packaging/release"));
    release.arg("--binary").arg(program).arg("--to").arg(to);
    let done = run(release.env("SOURCE_DATE_EPOCH", DATE).env("CARGO_NET_OFFLINE", "true"));
    String::from_utf8(done.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// The packages of the tested program, packed once: the archive, the Debian package if it can be made, the checksums.
fn packages() -> &'static [PathBuf] {
    static PACKED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PACKED.get_or_init(|| {
        // A directory in a static is never dropped, so it is not a temporary one.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packed");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("csalock");
        fs::copy(CSALOCK, &program).unwrap();
        // A release is stripped. This halves the time to pack, too.
        run(Command::new("strip").arg(&program));
        pack(&in_project(""), &program, &folder.join("packages"))
    })
}

fn debian_package() -> Option<&'static Path> {
    has("dpkg-deb")
        .then(|| packages().iter().find(|path| path.extension().is_some_and(|end| end == "deb")).unwrap().as_path())
}

struct System(TempDir);

impl System {
    fn new() -> System {
        let system = System(tempfile::tempdir().unwrap());
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(system.path("var/lib/dpkg").join(directory)).unwrap();
        }
        write(&system.path("var/lib/dpkg/status"), "");
        fs::create_dir(system.path("proc")).unwrap();
        system
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn dpkg(&self, words: &[&str]) -> String {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.path().display())).args(["--force-script-chrootless", "--log=/dev/null"]);
        String::from_utf8(run(dpkg.args(words).env("LC_ALL", "C")).stderr).unwrap()
    }

    fn install(&self, package: &Path) {
        self.dpkg(&["--install", package.to_str().unwrap()]);
    }

    /// Runs an installed program with this system as its whole file system.
    fn call(&self, words: &[&str]) -> Output {
        let script = "mount --bind /proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.0.path()).args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").output().unwrap()
    }

    fn succeed(&self, words: &[&str]) -> String {
        let done = self.call(words);
        assert!(done.status.success(), "{words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// All files and directories but dpkg's and the ones that the test made.
    fn files(&self) -> String {
        let mut find = Command::new("find");
        find.current_dir(self.0.path()).args(". -mindepth 1 -path ./var/lib/dpkg -prune -o -print".split(' '));
        let found = String::from_utf8(run(&mut find).stdout).unwrap();
        let mut lines: Vec<&str> =
            found.lines().filter(|line| !["./var", "./var/lib", "./proc"].contains(line)).collect();
        lines.sort_unstable();
        lines.join("\n")
    }
}

/// A system and a package for it, if this test may use both.
fn installed() -> Option<(System, &'static Path)> {
    let package = debian_package()?;
    if !has("dpkg") || !has_namespaces("a package in a root of its own") {
        return None;
    }
    let system = System::new();
    system.install(package);
    Some((system, package))
}

#[test]
fn the_debian_package_installs_a_program_that_locks() {
    let Some((system, _)) = installed() else { return };
    let store = fs::metadata(system.path("var/lib/csalock")).unwrap();
    assert_eq!((store.mode() & 0o7777, store.uid(), store.gid()), (0o755, 0, 0));
    assert_eq!(
        system.succeed(&["/usr/bin/csalock", "run", "nightly", "/usr/bin/csalock", "status", "-1"]),
        "nightly\n"
    );
    assert!(system.path("var/lib/csalock/.work").is_dir(), "root's default store is the one that was installed");
    let not_held = system.call(&["/usr/bin/csaUnlock", "./file"]);
    assert_eq!(not_held.status.code(), Some(81), "{not_held:?}");
    // The files are those of the package, and each link leads to one of them.
    assert_eq!(system.dpkg(&["--verify", "csalock"]), "");
    for link in ["usr/bin/csaLock", "usr/share/man/man1/csaUnlock.1.gz", "usr/share/man/man1/csalock-list.1.gz"] {
        assert!(fs::symlink_metadata(system.path(link)).unwrap().is_symlink() && system.path(link).is_file(), "{link}");
    }
    for file in [
        "share/man/man7/csalock.7.gz",
        "share/man/man1/csalock-run.1.gz",
        "share/man/man1/csaLock.1.gz",
        "share/bash-completion/completions/csalock",
        "share/zsh/vendor-completions/_csalock",
        "share/fish/vendor_completions.d/csalock.fish",
        "share/doc/csalock/copyright",
        "share/doc/csalock/third-party-licences.gz",
        "lib/tmpfiles.d/csalock.conf",
    ] {
        assert!(system.path("usr").join(file).is_file(), "{file}");
    }
}

#[test]
fn the_debian_package_removes_itself_and_an_empty_store() {
    let Some((system, package)) = installed() else { return };
    for _ in 0..3 {
        system.succeed(&["/usr/bin/csalock", "run", "-w", "5", "nightly", "/usr/bin/csalock", "status", "-1"]);
    }
    system.dpkg(&["--remove", "csalock"]);
    assert!(system.files().starts_with("./var/lib/csalock\n"), "{}", system.files());
    system.install(package);
    assert!(system.succeed(&["/usr/bin/csalock", "history", "-n", "1"]).contains("nightly"));
    assert_eq!(system.dpkg(&["--purge", "csalock"]), "");
    assert_eq!(system.files(), "");
}

#[test]
fn a_purge_keeps_locks_values_and_claims() {
    let Some((system, package)) = installed() else { return };
    let csalock = "/usr/bin/csalock";
    for (make, name, end) in [
        (&["lock", "--forever", "held"][..], "held", &["unlock", "held"][..]),
        (&["put", "guarded", "value"], "guarded", &["del", "guarded"]),
        (&["claim", "--id", "1", "claimed"], "claimed", &["unclaim", "--id", "1", "claimed"]),
    ] {
        system.install(package);
        system.succeed(&[&[csalock], make].concat());
        // A name with a value only is free, so `status` exits with 81.
        let status = || String::from_utf8(system.call(&[csalock, "status", "--json", name]).stdout).unwrap();
        let before = status();
        assert!(before.contains(&format!("\"{name}\"")), "{before}");
        let said = system.dpkg(&["--purge", "csalock"]);
        let kept = "csalock: /var/lib/csalock holds locks, values or claims, so it stays; to remove it: rm -r /var/lib/csalock";
        assert!(said.contains(kept), "{make:?}: {said}");
        system.install(package);
        assert_eq!(status(), before);
        system.succeed(&[&[csalock], end].concat());
    }
    system.dpkg(&["--purge", "csalock"]);
    assert_eq!(system.files(), "");
}

#[test]
fn a_directory_store_of_the_administrator_keeps_its_mode() {
    let Some((system, package)) = installed() else { return };
    fs::set_permissions(system.path("var/lib/csalock"), fs::Permissions::from_mode(0o2770)).unwrap();
    system.install(package);
    assert_eq!(fs::metadata(system.path("var/lib/csalock")).unwrap().mode() & 0o7777, 0o2770);
}

#[test]
fn lintian_finds_no_error() {
    let Some(package) = debian_package() else { return };
    require!(has("lintian"));
    assert_eq!(lintian(package), "", "warnings");
}

fn lintian(package: &Path) -> String {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error"]).arg(package);
    if nix::unistd::geteuid().is_root() {
        lintian.arg("--allow-root");
    }
    String::from_utf8(run(&mut lintian).stdout).unwrap()
}

#[test]
fn the_archive_installs_as_the_readme_says() {
    let lines: String = blocks("console").into_iter().map(|block| block.text).collect();
    let line = lines.lines().find(|line| line.starts_with("tar ")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = packages()[0].file_name().unwrap().to_str().unwrap();
    fs::copy(&packages()[0], folder.path().join(archive)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(lines.contains(&format!("csalock-{version}-x86_64-linux.tar.gz")), "the README names this version");
    assert!(lines.contains(&format!("./csalock_{version}-1_amd64.deb")), "the README names this version");
    let line = line.replace("x86_64", std::env::consts::ARCH).replace("/usr/local", "local");
    fs::create_dir(folder.path().join("local")).unwrap();
    run(Command::new("sh").args(["-euc", &line]).current_dir(folder.path()));
    let local = folder.path().join("local");
    let check = |sums: &str, at: &Path| {
        run(Command::new("sha256sum").args(["--check", "--strict", "--quiet", sums]).current_dir(at));
    };
    check("share/doc/csalock/SHA256SUMS", &local);
    let done = run(Command::new(local.join("bin/csaLock")).arg("--").arg("file").current_dir(folder.path()));
    assert!(done.stdout.is_empty() && done.stderr.is_empty(), "{done:?}");
    for file in ["man/man1/csalock.1", "man/man7/csalock.7", "doc/csalock/LICENSE-MIT", "doc/csalock/docs/recipes.md"] {
        assert!(local.join("share").join(file).is_file(), "{file}");
    }
    let sums = packages().last().unwrap();
    check("SHA256SUMS", sums.parent().unwrap());
}

/// A reader of the packed pages finds each page to which they link beside them.
#[test]
fn no_packed_page_links_to_a_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, debian) = (folder.path().join("archive"), folder.path().join("debian"));
    fs::create_dir(&archive).unwrap();
    run(Command::new("tar").arg("-xzf").arg(&packages()[0]).arg("--strip-components=1").current_dir(&archive));
    let mut places = vec![archive.join("share/doc/csalock")];
    if let Some(package) = debian_package() {
        run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&debian));
        let doc = debian.join("usr/share/doc/csalock");
        assert!(doc.join("changelog.gz").is_file() && !doc.join("CHANGELOG.md").exists(), "Debian has it once");
        places.push(doc);
    }
    for place in places {
        let pages = run(Command::new("find").args([".", "-name", "*.md"]).current_dir(&place)).stdout;
        let pages = String::from_utf8(pages).unwrap();
        assert!(pages.lines().count() > 10, "{pages}");
        let for_others = ["/dev/", "ARCHITECTURE", "CONTRIBUTING", "packaging", "tests"];
        assert!(!for_others.iter().any(|page| pages.contains(page)), "pages for developers: {pages}");
        for page in pages.lines().map(|page| place.join(page)) {
            for target in targets(&fs::read_to_string(&page).unwrap()) {
                let file = target.split('#').next().unwrap();
                assert!(page.parent().unwrap().join(file).exists(), "{}: {target}", page.display());
            }
        }
    }
}

/// Whether the files of the project can be told from others.
fn is_checkout() -> bool {
    let is_checkout = in_project(".git").exists();
    if !is_checkout {
        harness::skip("files of the project", "the sources are not a checkout of git");
    }
    is_checkout && has("git")
}

/// A copy of the files that git knows, in another directory.
fn checkout(to: &Path) {
    let copy = "git ls-files -z | grep -zv '^target' | xargs -0 cp --parents --target-directory \"$0\"";
    run(Command::new("sh").args(["-c", copy]).arg(to).current_dir(in_project("")));
}

/// The version that the build script gives a program of this profile, in a project at this place.
fn version_built(script: &Path, project: &Path, level: &str, commit: Option<&str>) -> String {
    let mut command = Command::new(script);
    command.env("CARGO_MANIFEST_DIR", project).env("OUT_DIR", script.parent().unwrap()).env("OPT_LEVEL", level);
    command.env("CARGO_PKG_VERSION", "1.2.3").env_remove("CSALOCK_COMMIT");
    commit.map(|commit| command.env("CSALOCK_COMMIT", commit));
    let printed = String::from_utf8(run(&mut command).stdout).unwrap();
    printed.lines().find_map(|line| line.strip_prefix("cargo::rustc-env=CSALOCK_VERSION=")).unwrap().to_string()
}

#[test]
fn the_version_of_an_optimized_build_names_its_commit() {
    require!(is_checkout());
    let folder = tempfile::tempdir().unwrap();
    let (script, outside) = (folder.path().join("build"), folder.path().join("sources"));
    run(Command::new("rustc").args(["--edition", "2024", "build.rs", "-o"]).arg(&script).current_dir(in_project("")));
    let head = run(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(in_project("")));
    let named = format!("1.2.3 ({})", String::from_utf8(head.stdout).unwrap().trim());
    assert_eq!(version_built(&script, &in_project(""), "s", None), named);
    assert_eq!(version_built(&script, &in_project(""), "1", None), "1.2.3");
    for part in ["man", "completions"] {
        fs::create_dir_all(outside.join(part)).unwrap();
        fs::create_dir_all(outside.join(part).join("text")).unwrap();
    }
    assert_eq!(version_built(&script, &outside, "s", None), "1.2.3");
    assert_eq!(version_built(&script, &outside, "s", Some("abc")), "1.2.3 (abc)");
}

#[test]
fn packing_does_not_depend_on_the_place_the_time_and_the_user() {
    require!(is_checkout());
    let folder = tempfile::tempdir().unwrap();
    // The beginning of the program is enough of a program here.
    let program = folder.path().join("program");
    fs::write(&program, &fs::read(CSALOCK).unwrap()[..4096]).unwrap();
    let other = folder.path().join("another directory");
    fs::create_dir(&other).unwrap();
    checkout(&other);
    let one = pack(&in_project(""), &program, &folder.path().join("one"));
    let mut release = Command::new("sh");
    release
        .args(["-c", "umask 077; exec packaging/release --binary \"$0\" --to ../two"])
        .arg(&program)
        .current_dir(&other);
    run(release.env("SOURCE_DATE_EPOCH", DATE).env("CARGO_NET_OFFLINE", "true").env("TZ", "Asia/Tokyo"));
    for path in one {
        let same = folder.path().join("two").join(path.file_name().unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(&same).unwrap(), "{}", path.display());
    }
}

pub(crate) fn why_not(test: &harness::Test) -> Option<&'static str> {
    let long =
        ["two_builds_in_two_directories_are_identical", "a_program_outside_the_tree_has_the_rust_api_without_tls"];
    (long.contains(&test.name) && extent() == Extent::Quick).then_some(FOR_ALL)
}

/// Two builds of one commit are equal to the byte: see `packaging/release`. It takes some minutes.
#[test]
fn two_builds_in_two_directories_are_identical() {
    require!(is_checkout());
    let folder = tempfile::tempdir().unwrap();
    let places = ["one", "a/deeper/place"].map(|place| folder.path().join(place));
    for place in &places {
        fs::create_dir_all(place).unwrap();
        checkout(place);
    }
    for place in &places {
        let mut release = Command::new(place.join("packaging/release"));
        release.arg(std::env::consts::ARCH).env("SOURCE_DATE_EPOCH", DATE).env("CARGO_NET_OFFLINE", "true");
        run(release.env_remove("CARGO_TARGET_DIR"));
    }
    let sums = places.each_ref().map(|place| fs::read_to_string(place.join("target/packages/SHA256SUMS")).unwrap());
    assert_eq!(sums[0], sums[1]);
    // The packages of other tests have a program that these have stripped.
    let package = sums[0].split_whitespace().find(|word| word.ends_with(".deb"));
    if let Some(package) = package.filter(|_| has("lintian")) {
        assert_eq!(lintian(&places[0].join("target/packages").join(package)), "", "warnings");
    }
}

/// Without its features, the crate of the API pulls in no clap, no TLS and no C.
#[test]
fn a_program_outside_the_tree_has_the_rust_api_without_tls() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!(
        "[package]\nname = \"worker\"\nedition = \"2024\"\n[dependencies]\n\
         csalock-locks = {{ path = {:?}, default-features = false }}\n",
        in_project("crates/locks")
    );
    let main = "fn main() {\n    let url = format!(\"dir:{}\", std::env::args().nth(1).unwrap());\n    \
                let locks = csalock_locks::Locks::open(&url).unwrap();\n    \
                let guard = locks.lock(\"nightly\", std::time::Duration::ZERO).unwrap().held().expect(\"free\");\n    \
                guard.release().unwrap();\n    print!(\"released\");\n}\n";
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("src/main.rs"), main).unwrap();
    fs::copy(in_project("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let cargo = |words: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.args(words).current_dir(folder.path()).env("CARGO_TARGET_DIR", in_project("target/tools/outside"));
        String::from_utf8(run(&mut cargo).stdout).unwrap()
    };
    let tree = cargo(&["tree", "--offline", "--quiet", "--prefix", "none"]);
    assert!(
        tree.contains("csalock-engine")
            && !["clap", "rustls", "ring", "rusqlite", "getrandom"].iter().any(|name| tree.contains(name)),
        "{tree}"
    );
    let store = folder.path().join("store").display().to_string();
    assert_eq!(cargo(&["run", "--offline", "--quiet", &store]), "released");
}

/// What a registry would get can be built.
#[test]
fn cargo_packs_the_sources() {
    let mut package = Command::new("cargo");
    package.args(["package", "--workspace", "--locked", "--offline", "--allow-dirty", "--quiet"]);
    // The harness is for the tests in this tree only.
    package.args(["--exclude", "harness", "--exclude", "harness-macros"]);
    if extent() < Extent::All {
        package.arg("--list");
    }
    let done = run(package.current_dir(in_project("")));
    assert!(!String::from_utf8_lossy(&done.stderr).contains("warning: "), "{done:?}");
}

#[test]
fn an_architecture_that_cannot_be_built_is_told_with_what_is_missing() {
    let home = crate::home::Home::new();
    let other = if std::env::consts::ARCH == "x86_64" { "aarch64" } else { "x86_64" };
    let mut release = Command::new(in_project("packaging/release"));
    release.arg(other).arg("--to").arg(home.path()).env("SOURCE_DATE_EPOCH", DATE).env("CARGO", "false");
    let compiler = format!("{other}-linux-gnu-gcc");
    if Command::new("sh").args(["-c", &format!("command -v {compiler}")]).output().unwrap().status.success() {
        return harness::skip("what a build lacks", "the compiler for the other architecture is here");
    }
    let done = release.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("packaging/release: {other}: not built; it needs ")), "{said}");
    assert!(
        said.contains(&format!("the C compiler {compiler} (Debian: gcc-{}-linux-gnu)", other.replace('_', "-"))),
        "{said}"
    );
}

#[test]
fn a_tag_makes_the_same_packages() {
    let workflow = |name: &str| fs::read_to_string(in_project(".github/workflows").join(name)).unwrap();
    for (name, line) in [
        ("ci.yml", "run: .ci/run"),
        ("full.yml", "run: CSALOCK_TESTS=all .ci/run"),
        ("full.yml", "packaging/musl test --profile checked --test behaviour"),
        ("full.yml", "run: tests/bare/run"),
        ("release.yml", "tags: [\"v*\"]"),
        ("release.yml", "run: .ci/run"),
        ("release.yml", "rustup target add x86_64-unknown-linux-musl aarch64-unknown-linux-musl"),
        ("release.yml", "run: packaging/release --to packages x86_64 aarch64"),
    ] {
        let workflow = workflow(name);
        assert!(workflow.contains(line), "{name}: {line}");
        let used = workflow.lines().filter_map(|line| line.split_once("uses: ")?.1.split_once('@'));
        for (action, version) in used {
            let commit = version.split(' ').next().unwrap();
            assert_eq!(commit.len(), 40, "{name}: {action} is pinned by its commit");
        }
    }
    assert!(read("README.md").contains("`packaging/release`"));
}
