//! `docs/production.md`, run on one machine: its files and commands are taken from the page. Each machine of the page is
//! a folder in place of its root and an address of loopback; `production/machine.sh` stands for systemd, `apt-get`,
//! `ssh` and `cargo install`. Redis, Quell, nginx, Prometheus and the clients are real.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use quell_testkit::port::free_port;

use crate::clients::{promtool, require, systemd_analyze};
use crate::files::{Folder, of_repository};
use crate::gateways::{Application, replace};
use crate::pages::{Part, blocks, is_as_shown, shown};
use crate::process::{Run, run};

/// The machines, and the addresses that stand for theirs.
const MACHINES: [(&str, &str); 5] = [
    ("build", "127.0.0.1"),
    ("redis-1", "127.0.0.5"),
    ("gw-1", "127.0.0.11"),
    ("gw-2", "127.0.0.12"),
    ("monitor", "127.0.0.1"),
];

/// The other networks of the page: of a load balancer, and of a CDN.
const PROXIES: [(&str, &str); 2] = [
    ("10.0.1.0/24", "127.0.1.0/24"),
    ("203.0.113.0/24", "127.0.3.0/24"),
];

/// A longer timeout than the product has, so that a slow machine gets the answers of the page.
const PATIENCE: &str = "QUELL_STORE_TIMEOUT=10s";

/// The same in the files of the page. Of a limit nothing comes back while the test runs.
const SLOWER: [(&str, &str, &str); 6] = [
    ("site.yaml", "limit: 5/min", "limit: 5/day"),
    ("site.yaml", "within: 10m", "within: 10h"),
    ("site.yaml", "rate: 100/s", "rate: 100/day"),
    (
        "conf.d/site.conf",
        "proxy_connect_timeout 200ms",
        "proxy_connect_timeout 60s",
    ),
    (
        "conf.d/site.conf",
        "proxy_read_timeout 1s",
        "proxy_read_timeout 60s",
    ),
    (
        "prometheus.yml",
        "scrape_interval: 15s",
        "scrape_interval: 1s",
    ),
];

/// A block of the page, and the machines that it is for.
#[derive(Debug)]
struct Block {
    machines: Vec<String>,
    /// The path, if it is a file.
    path: Option<String>,
    text: String,
}

/// The blocks in the order of the page, up to the lines that are for those who want no refusal without Quell.
fn page() -> Vec<Block> {
    let page = fs::read_to_string(of_repository("docs/production.md")).unwrap();
    let (steps, _) = page.split_once("\n### Without Quell\n").unwrap();
    let read = |block: &str| {
        let (head, text) = block.split_once('\n').unwrap();
        let head = head
            .strip_prefix("# ")
            .unwrap_or_else(|| panic!("no head: {block}"));
        let (path, machines) = match head.split_once(" (") {
            Some((path, machines)) => (Some(path.to_owned()), machines.trim_end_matches(')')),
            None => (None, head),
        };
        let machines: Vec<_> = machines.split(" and ").map(str::to_owned).collect();
        for machine in &machines {
            let is_known = MACHINES.iter().any(|(name, _)| name == machine);
            assert!(is_known, "no machine {machine}: {block}");
        }
        Block {
            machines,
            path,
            text: format!("{text}\n"),
        }
    };
    blocks(steps)
        .into_iter()
        .map(|(.., text)| read(text))
        .collect()
}

/// All machines. Their programs end with it.
struct Site {
    folder: Folder,
    application: Application,
    /// The ports of the page, and those of this test.
    ports: Vec<(&'static str, u16)>,
}

impl Site {
    fn new() -> Self {
        let folder = Folder::new();
        for (machine, _) in MACHINES {
            for path in [
                "home",
                "run",
                "var",
                "usr/local/bin",
                "etc/default",
                "etc/systemd/system",
            ] {
                fs::create_dir_all(folder.path(&format!("{machine}/{path}"))).unwrap();
            }
        }
        symlink(of_repository(""), folder.path("build/home/quell")).unwrap();
        fs::create_dir(folder.path("redis-1/etc/redis")).unwrap();
        // The part of Debian's file that matters.
        let debian = "bind 127.0.0.1 -::1\nport 6379\nappendonly no\n";
        fs::write(folder.path("redis-1/etc/redis/redis.conf"), debian).unwrap();
        let ports = ["80", "443", "8443", "8444", "6379", "9090", "9093"];
        Self {
            folder,
            application: Application::start(),
            ports: ports.map(|port| (port, free_port())).to_vec(),
        }
    }

    fn port(&self, named: &str) -> u16 {
        let found = self.ports.iter().find(|(port, _)| *port == named);
        found.unwrap().1
    }

    fn root(&self, machine: &str) -> String {
        self.folder.path(machine)
    }

    /// A text of the page with the addresses, ports and paths of a machine here.
    fn adapt(&self, text: &str, machine: &str) -> String {
        let address = address_of(machine);
        let application = format!("127.0.0.1:{}", self.application.port);
        let mut text = text
            .replace("10.0.0.20:3000", &application)
            .replace("0.0.0.0:", &format!("{address}:"))
            .replace("listen ", &format!("listen {address}:"));
        for (network, here) in PROXIES {
            text = text.replace(network, here);
        }
        // The port that visitors type stays, and leads to another one.
        text = text.replace("shop.example:443:", "shop.example:https:");
        for (port, here) in &self.ports {
            for before in [":", "tls-port ", "-p "] {
                for after in [" ", "/", ";", "\"", "\n"] {
                    let named = format!("{before}{port}{after}");
                    text = text.replace(&named, &format!("{before}{here}{after}"));
                }
            }
        }
        text = text
            .replace("shop.example:https:", "shop.example:443:")
            .replace("10.0.0.", "127.0.0.");
        let root = self.root(machine);
        for path in ["/etc/", "/usr/local/"] {
            for before in [" ", "\"", ":", "="] {
                let named = format!("{before}{path}");
                text = text.replace(&named, &format!("{before}{root}{path}"));
            }
        }
        text
    }

    /// Writes a file of the page.
    fn write(&self, path: &str, text: &str, machine: &str) {
        let mut text = self.adapt(text, machine);
        for (file, from, to) in SLOWER {
            if path.ends_with(&format!("/{file}")) {
                text = replace(&text, from, to);
            }
        }
        let file = format!("{}{path}", self.root(machine));
        fs::create_dir_all(file.rsplit_once('/').unwrap().0).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Runs commands on a machine; returns what they print.
    fn run(&self, machine: &str, script: &str) -> String {
        let ended = self.shell(machine, script);
        assert!(ended.status.success(), "{script}\n{ended:?}");
        ended.stdout
    }

    /// Runs commands on a machine.
    fn shell(&self, machine: &str, script: &str) -> Run {
        let shell = of_repository("crates/quell-cli/tests/it/production/machine.sh");
        let script = format!("source {shell}\n{script}");
        let (root, address) = (self.root(machine), address_of(machine));
        let path = std::env::var("PATH").unwrap();
        let mut bash = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUELL_") {
                bash.env_remove(name);
            }
        }
        bash.args(["-c", &script])
            .current_dir(format!("{root}/home"))
            .env("HOME", format!("{root}/home"))
            .env(
                "PATH",
                format!("{root}/home/.cargo/bin:{root}/usr/local/bin:{path}:/usr/sbin"),
            )
            .env("MACHINES", self.folder.path(""))
            .env("MACHINE", machine)
            .env("ROOT", root)
            .env("ADDRESS", address)
            .env("QUELL", env!("CARGO_BIN_EXE_quell"))
            .env("QUELL_PATIENCE", PATIENCE)
            .env("HTTPS_PORT", self.port("443").to_string())
            .env("REDIS_PORT", self.port("6379").to_string())
            .env("PROMETHEUS_PORT", self.port("9090").to_string())
            .env("no_proxy", "*");
        run(&mut bash)
    }

    /// Does what a block says, on each of its machines. Returns what its commands print.
    fn follow(&self, block: &Block) -> String {
        let mut printed = String::new();
        for machine in &block.machines {
            if let Some(path) = &block.path {
                self.write(path, &block.text, machine);
            } else if block.text.starts_with("$ ") {
                self.show(&block.text, machine);
            } else {
                printed += &self.run(machine, &self.adapt(&block.text, machine));
            }
        }
        printed
    }

    /// Runs the commands of a block, which print what the page shows.
    fn show(&self, block: &str, machine: &str) {
        let mut before = String::new();
        for part in shown(block) {
            let Part::Shown(command, expected) = part else {
                unreachable!("only commands are shown");
            };
            let command = self.adapt(&format!("{command}\n"), machine);
            let printed = self.run(machine, &format!("{before}{command}"));
            assert!(
                is_as_shown(&printed, &expected),
                "{command}\nprinted\n{printed}\nand not\n{expected:#?}"
            );
            // Of what was shown, a function alone is needed again.
            if command.contains("() {") {
                before += &command;
            }
        }
    }

    /// The status that a visitor gets, or 0 without an answer. He calls a gateway from an address of loopback, as the
    /// proxy that has it, and with what that proxy says of him.
    fn visit(&self, gateway: &str, from: &str, more: &str) -> u16 {
        let to = format!("{}:{}", address_of(gateway), self.port("443"));
        let command = format!(
            "curl -s --cacert ca.pem -o /dev/null -w '%{{http_code}}' --interface {from} \
             --connect-to shop.example:443:{to} {more} || true"
        );
        self.run("build", &command).parse().unwrap()
    }

    /// The status of a login of a visitor behind a CDN and a load balancer, who lies about his address.
    fn login(&self, gateway: &str, visitor: &str, lie: u8) -> u16 {
        let chain = format!("-H 'X-Forwarded-For: 198.51.100.{lie}, {visitor}, 127.0.3.{lie}'");
        let form = format!("{chain} -d name=ann https://shop.example/login");
        self.visit(gateway, "127.0.1.9", &form)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for (machine, _) in MACHINES {
            // A test that fails says why it did.
            drop(self.shell(machine, "stop_all"));
        }
    }
}

fn address_of(machine: &str) -> &'static str {
    let found = MACHINES.iter().find(|(name, _)| *name == machine);
    found.unwrap().1
}

/// The sum of the numbers in lines of `ab` that begin with these words.
fn sum_of(printed: &str, name: &str) -> u32 {
    let numbers = printed.lines().filter_map(|line| line.strip_prefix(name));
    numbers
        .map(|number| number.trim().parse::<u32>().unwrap())
        .sum()
}

#[test]
fn the_page_leads_from_nothing_to_production() {
    for program in [
        "openssl",
        "redis-server",
        "redis-cli",
        "nginx",
        "curl",
        "ab",
        "prometheus",
    ] {
        require(program);
    }
    let (site, page) = (Site::new(), page());
    let paths = page.iter().filter(|block| block.path.is_some()).count();
    assert_eq!(paths, 7, "the files of the page");
    let printed: String = page.iter().map(|block| site.follow(block)).collect();

    // One key, 150 calls at each gateway: what it had passes, over both.
    assert_eq!(sum_of(&printed, "Complete requests:"), 300, "{printed}");
    assert_eq!(sum_of(&printed, "Non-2xx responses:"), 200, "{printed}");
    let requests = site.application.requests();
    let calls = requests.iter().filter(|line| *line == "GET /api/");
    assert_eq!(calls.count(), 100);
    let logins = requests.iter().filter(|line| line.contains("/login"));
    assert_eq!(logins.count(), 5, "{requests:?}");

    proxies_do_not_hide_a_visitor(&site);
    tls_is_what_the_page_says(&site);
    a_gateway_that_quell_does_not_know_lets_nobody_pass(&site);
    systemd_takes_the_unit(&site);
}

/// Behind a CDN and a load balancer a visitor is counted by the address that the CDN saw, at both gateways.
fn proxies_do_not_hide_a_visitor(site: &Site) {
    let answers: Vec<u16> = (1..=8)
        .map(|lie| site.login("gw-1", "192.0.2.1", lie))
        .collect();
    assert_eq!(answers, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(site.login("gw-2", "192.0.2.1", 9), 429);
    assert_eq!(site.login("gw-2", "192.0.2.2", 1), 200, "another visitor");
    for address in ["10.0.0.11", "10.0.0.12"] {
        let list = format!(
            "quell bans list --json --url https://{address}:8444 --ca ca.pem --token-file ops.token\n"
        );
        let bans = site.run("build", &site.adapt(&list, "build"));
        assert!(
            bans.contains("192.0.2.1") && !bans.contains("198.51.100."),
            "{bans}"
        );
    }
}

fn tls_is_what_the_page_says(site: &Site) {
    let home = "https://shop.example/";
    assert_eq!(site.visit("gw-1", "127.0.0.1", home), 200);
    let older = format!("--tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0 {home}");
    assert_eq!(site.visit("gw-1", "127.0.0.1", &older), 0, "TLS 1.1");
    let stranger = format!("--cacert gw-1.pem {home}");
    assert_eq!(
        site.visit("gw-1", "127.0.0.1", &stranger),
        0,
        "another authority"
    );
    let ask = |url: &str, more: &str| {
        let command = format!("curl -s -o /dev/null -w '%{{http_code}}' {more} {url} || true\n");
        site.run("build", &site.adapt(&command, "build"))
    };
    let authorize = "10.0.0.11:8443/v1/authorize?domain=site";
    for (url, more, status) in [
        // Quell asks everybody for a token, and for TLS.
        (format!("https://{authorize}"), "--cacert ca.pem", "401"),
        (
            "https://10.0.0.11:8444/metrics".to_owned(),
            "--cacert ca.pem",
            "401",
        ),
        (format!("http://{authorize}"), "", "400"),
        (
            "http://10.0.0.11:80/".to_owned(),
            "-H 'Host: shop.example'",
            "301",
        ),
    ] {
        assert_eq!(ask(&url, more), status, "{url}");
    }
    let clear = site.adapt(
        "redis-cli -h 10.0.0.5 -p $REDIS_PORT PING || true\n",
        "build",
    );
    assert!(
        !site.run("build", &clear).contains("PONG"),
        "Redis without TLS"
    );
}

fn a_gateway_that_quell_does_not_know_lets_nobody_pass(site: &Site) {
    let home = "https://shop.example/";
    let before = site.application.requests();
    for (file, wrong) in [
        (
            "quell-token.conf",
            "proxy_set_header X-Quell-Token quell_wrong;\n",
        ),
        (
            "ca.pem",
            &*fs::read_to_string(site.root("build") + "/home/gw-1.pem").unwrap(),
        ),
    ] {
        let file = format!("{}/etc/nginx/tls/{file}", site.root("gw-2"));
        let right = fs::read_to_string(&file).unwrap();
        fs::write(&file, wrong).unwrap();
        site.run("gw-2", "systemctl reload nginx");
        assert_eq!(site.visit("gw-2", "127.0.0.1", home), 500, "{file}");
        fs::write(&file, right).unwrap();
    }
    site.run("gw-2", "systemctl reload nginx");
    assert_eq!(site.application.requests(), before);
    assert_eq!(site.visit("gw-2", "127.0.0.1", home), 200);
}

/// The unit of the repository with what the page adds to it.
fn systemd_takes_the_unit(site: &Site) {
    let unit = site.root("gw-1") + "/etc/systemd/system/quell.service";
    let verify = ["verify", "--man=no", "--recursive-errors=no", &unit];
    let verify = run(systemd_analyze().args(verify));
    assert!(
        verify.status.success() && verify.stderr.is_empty(),
        "{verify:?}"
    );
}

/// `deploy::each_alert_fires_when_it_has_to` tries them.
#[test]
fn each_alert_of_the_page_is_one_of_the_repository() {
    let alerts = fs::read_to_string(of_repository("deploy/prometheus/alerts.yml")).unwrap();
    let page = page();
    let mut files = page.iter();
    let of_page = files.find(|block| block.path.as_deref() == Some("/etc/prometheus/quell.yml"));
    let of_page = &of_page.unwrap().text;
    let each: Vec<&str> = of_page.split("      - alert: ").skip(1).collect();
    assert_eq!(each.len(), 7);
    for alert in each {
        assert!(
            alerts.contains(&format!("      - alert: {alert}")),
            "{alert}"
        );
    }
    let folder = Folder::new();
    run(promtool().args(["check", "rules", &folder.write("quell.yml", of_page)])).expect_success();
}
