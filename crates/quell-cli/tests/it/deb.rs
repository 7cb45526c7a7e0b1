//! The Debian package: installed, upgraded, removed and purged, in a root of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::{fakeroot, systemctl};
use crate::files::{Folder, of_repository};
use crate::process::{Run, run};
use crate::server::Server;

/// Link that makes systemd start the unit.
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants/quell.service";

/// Settings that differ between two versions: the first is the administrator's, the second as it was installed.
const SETTINGS: [&str; 2] = ["etc/quell/rules.d/example.yaml", "etc/quell/quell.toml"];

/// Contents of the files in the earlier version.
const EARLIER: &str = "# as it was\n";

/// Commands that `docs/operate.md` gives: to make the package, and to install it.
fn page() -> (String, String) {
    let page = fs::read_to_string(of_repository("docs/operate.md")).unwrap();
    let value = |before: &str| {
        let (_, after) = page.split_once(before).unwrap();
        after.lines().next().unwrap().to_owned()
    };
    (
        value("```sh\nsh deploy/debian/"),
        value("\nsudo apt-get install ./target/debian/"),
    )
}

/// Makes the package of this debug build, as the page says; returns its path.
fn package(folder: &Folder) -> PathBuf {
    let mut make = Command::new("sh");
    make.arg(of_repository(&format!("deploy/debian/{}", page().0)));
    make.env("BINARY", env!("CARGO_BIN_EXE_quell"))
        .env("REVISION", "2")
        .env("COMPRESSION", "none")
        .env("OUT", folder.path("debs"));
    let made = run(&mut make).expect_success();
    PathBuf::from(made.trim())
}

/// The package before that one, whose settings were others.
fn earlier(folder: &Folder, package: &Path) -> String {
    let (tree, old) = (folder.path("old"), folder.path("old.deb"));
    run(Command::new("dpkg-deb").args(["--raw-extract", package.to_str().unwrap(), &tree]))
        .expect_success();
    let change = |file: &str, by: &dyn Fn(String) -> String| {
        let path = format!("{tree}/{file}");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, by(text)).unwrap();
    };
    for file in SETTINGS {
        change(file, &|text| text + EARLIER);
    }
    change("DEBIAN/control", &|text| text.replace("0.1.0-2", "0.1.0-1"));
    run(fakeroot().args(["dpkg-deb", "-Znone", "--build", &tree, &old])).expect_success();
    old
}

/// An empty root with a database of packages.
struct Root(Folder);

impl Root {
    fn new() -> Self {
        let root = Self(Folder::new());
        for folder in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.path(&format!("var/lib/dpkg/{folder}"))).unwrap();
        }
        fs::write(root.path("var/lib/dpkg/status"), "").unwrap();
        root
    }

    fn path(&self, file: &str) -> String {
        self.0.path(file)
    }

    fn has(&self, file: &str) -> bool {
        Path::new(&self.path(file)).exists()
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn mode(&self, file: &str) -> u32 {
        fs::metadata(self.path(file)).unwrap().permissions().mode() & 0o7777
    }

    /// dpkg, which sees this root alone. It needs no rights: `fakeroot` has it believe that it has them.
    fn dpkg(&self, arguments: &[&str]) -> Run {
        let mut dpkg = fakeroot();
        dpkg.args(["dpkg", &format!("--root={}", self.path(""))]);
        // The root has no C library, and nothing to run scripts with.
        dpkg.args([
            "--force-script-chrootless",
            "--force-depends",
            "--force-bad-path",
        ]);
        dpkg.arg("--log=/dev/null").args(arguments);
        run(&mut dpkg)
    }

    fn status(&self) -> String {
        let mut query = Command::new("dpkg-query");
        query.args([
            &format!("--root={}", self.path("")),
            "-W",
            "-f",
            "${Status} ${Version}",
            "quell",
        ]);
        run(&mut query).stdout
    }
}

/// The package brings more than what `serves` starts.
fn installed(root: &Root) {
    assert_eq!(root.status(), "install ok installed 0.1.0-2");
    for (from, to) in [
        ("quell.service", "lib/systemd/system/quell.service"),
        // Not for every server: whoever runs a fleet copies it.
        (
            "quell-coordinator.service",
            "share/doc/quell/examples/quell-coordinator.service",
        ),
        (
            "prometheus/alerts.yml",
            "share/doc/quell/prometheus/alerts.yml",
        ),
        ("grafana/quell.json", "share/doc/quell/grafana/quell.json"),
    ] {
        let source = fs::read_to_string(of_repository(&format!("deploy/{from}"))).unwrap();
        assert!(root.text(&format!("usr/{to}")) == source, "{to}");
    }
    let secret = root.mode("etc/default/quell");
    assert_eq!((secret, root.mode("etc/quell/quell.toml")), (0o600, 0o644));
    for file in [
        "man/man1/quell-serve.1.gz",
        "bash-completion/completions/quell",
        "zsh/vendor-completions/_quell",
        "fish/vendor_completions.d/quell.fish",
    ] {
        assert!(root.has(&format!("usr/share/{file}")), "{file}");
    }
    let copyright = root.text("usr/share/doc/quell/copyright");
    for text in ["Apache-2.0", "Permission is hereby granted", "\n tokio 1."] {
        assert!(copyright.contains(text), "no {text} in\n{copyright}");
    }
    for other in ["\n proptest ", "\n loom ", "\n quell "] {
        assert!(!copyright.contains(other), "{other} is not in the binary");
    }
    assert!(!copyright.contains("/registry/"), "no path of this machine");
    let third_party = root.path("usr/share/doc/quell/third-party-licenses.txt.gz");
    let texts = run(Command::new("zcat").arg(third_party)).expect_success();
    for author in ["Tokio Contributors", "Leon Sorokin"] {
        assert!(texts.contains(author), "the notice of {author} is kept");
    }
}

/// Starts what the unit starts, on ports and in folders of this test, and asks it as `docs/operate.md` does.
fn serves(root: &Root) {
    let unit = root.text("usr/lib/systemd/system/quell.service");
    let command = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let toml = root.text("etc/quell/quell.toml");
    let config = toml
        .replace("/etc/quell", &root.path("etc/quell"))
        .replace("/var/lib/quell", &root.path("state"));
    let config = root.0.write("quell.toml", &config);
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(
        (words[0], words[3]),
        ("/usr/bin/quell", "/etc/quell/quell.toml")
    );
    let mut serve = Command::new(root.path(&words[0][1..]));
    serve.args([
        words[1],
        words[2],
        &config,
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
    ]);
    let server = Server::spawn(&mut serve);
    assert!(server.log().contains("1 rule in "), "{}", server.log());
    let quell = |words: &[&str]| run(Command::new(root.path("usr/bin/quell")).args(words));
    quell(&["health", "--url", &server.url("")]).expect_success();
    server.stop();
    assert!(root.has("state"), "states are kept");
}

#[test]
fn it_is_installed_upgraded_removed_and_purged() {
    let (folder, root) = (Folder::new(), Root::new());
    let made = package(&folder);
    let machine = run(Command::new("dpkg").arg("--print-architecture")).expect_success();
    let named = page()
        .1
        .replace("amd64", machine.trim())
        .replace("-1_", "-2_");
    assert_eq!(made.file_name().unwrap().to_str(), Some(&*named));
    root.dpkg(&["--install", &earlier(&folder, &made)])
        .expect_success();
    assert_eq!(root.status(), "install ok installed 0.1.0-1");
    let root_flag = format!("--root={}", root.path(""));
    run(systemctl().args([&root_flag, "enable", "quell"])).expect_success();
    // It leads out of the root.
    let is_enabled = || fs::symlink_metadata(root.path(ENABLED)).is_ok();
    assert!(is_enabled());

    // An upgrade keeps what the administrator wrote, and replaces the rest.
    let own = "domain: gateway\nrules: [{ name: per-address, rate: 7/min }]\n";
    fs::write(root.path("etc/quell/rules.d/example.yaml"), own).unwrap();
    fs::write(
        root.path("etc/quell/rules.d/shop.yaml"),
        "domain: shop\nrules: []\n",
    )
    .unwrap();
    for kind in ["lib", "log"] {
        fs::create_dir_all(root.path(&format!("var/{kind}/private/quell"))).unwrap();
    }
    // What dpkg does by itself where it would ask about a changed file.
    let upgraded = root.dpkg(&["--force-confdef", "--install", made.to_str().unwrap()]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    let now = |file: &str| fs::read_to_string(of_repository(&format!("deploy/{file}"))).unwrap();
    assert_eq!(root.text("etc/quell/quell.toml"), now("quell.toml"));
    let offered = root.text("etc/quell/rules.d/example.yaml.dpkg-dist");
    assert_eq!(offered, now("example.yaml"));
    assert_eq!(root.text("etc/quell/rules.d/example.yaml"), own);
    assert!(is_enabled());
    installed(&root);
    serves(&root);

    // A removal keeps all that is his; a purge keeps the files that he made.
    root.dpkg(&["--remove", "quell"]).expect_success();
    assert!(!is_enabled(), "no link to a unit that is gone");
    assert!(!root.has("usr/bin/quell") && !root.has("usr/lib/systemd/system/quell.service"));
    assert_eq!(root.text("etc/quell/rules.d/example.yaml"), own);
    assert!(
        root.has("var/lib/private/quell"),
        "states survive a removal"
    );
    root.dpkg(&["--purge", "quell"]).expect_success();
    for gone in [
        "etc/quell/quell.toml",
        "etc/quell/rules.d/example.yaml",
        "etc/default/quell",
        "etc/logrotate.d/quell",
        "usr/share/doc/quell",
        "var/lib/private/quell",
        "var/log/private/quell",
    ] {
        assert!(!root.has(gone), "{gone} is still there");
    }
    assert!(root.has("etc/quell/rules.d/shop.yaml"));
    assert_eq!(root.status(), "");
}
