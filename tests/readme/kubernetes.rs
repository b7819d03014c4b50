//! The pods of docs/kubernetes.md: their command lines, as a kubelet starts and ends them, and their exit codes.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::home::{CSALOCK, Home};
use crate::page::blocks;
use harness::{has, skip};

/// The YAML of the page, as JSON.
fn manifests() -> Option<Vec<Value>> {
    let python = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))";
    let pages = blocks("yaml").into_iter().filter(|block| block.page == "docs/kubernetes.md");
    let home = Home::without_programs();
    let converted = pages.map(|block| {
        let file = home.path().join("manifest");
        crate::home::write(&file, &block.text);
        let done = Command::new("python3").args(["-c", python]).stdin(std::fs::File::open(file).unwrap()).output();
        let done = done.unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() || said.contains("No module named 'yaml'"), "{said}");
        if !done.status.success() {
            skip("manifests", "python3 has no module yaml (apt-get install python3-yaml)");
        }
        serde_json::from_slice(&done.stdout).ok()
    });
    converted.collect()
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_string()).collect()
}

/// A pod of the page in an empty home, whose command is this script and whose store is a directory.
struct Pod {
    home: Home,
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Pod {
    fn new(spec: &Value, script: &str) -> Pod {
        let home = Home::new();
        home.add_program("command", script);
        let container = &spec["containers"][0];
        let mut words = [words(&container["command"]), words(&container["args"])].concat();
        *words.last_mut().unwrap() = "command".to_string();
        let mut variables = Vec::new();
        for set in container["env"].as_array().unwrap() {
            let name = set["name"].as_str().unwrap();
            let lease = set["value"].as_str().and_then(|url| url.split_once("?lease="));
            let value = match lease {
                Some((_, lease)) => format!("dir:{}/store?shared=1&lease={lease}", home.path().display()),
                None => set["value"].as_str().unwrap_or("sEcReT").to_string(),
            };
            variables.push((name.to_string(), value));
        }
        assert!(variables.iter().any(|(name, value)| name == "CSALOCK_STORE" && value.contains("lease=")));
        Pod { home, words, variables }
    }

    fn call(&self, words: &[&str]) -> Command {
        let mut command = Command::new(CSALOCK);
        command.args(words).current_dir(self.home.path()).env_clear().envs(self.variables.clone());
        let bin = self.home.path().with_file_name("bin");
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("HOME", self.home.path());
        command.stdin(Stdio::null());
        command
    }

    /// Starts the pod, and waits until its command runs.
    fn start(&self) -> Child {
        let words: Vec<&str> = self.words[1..].iter().map(String::as_str).collect();
        let child = self.call(&words).spawn().unwrap();
        let has_started = || self.home.path().join("started").exists();
        (0..600).find(|_| {
            sleep(Duration::from_millis(50));
            has_started()
        });
        assert!(has_started(), "the command does not start: {:?}", self.words);
        child
    }

    fn code(&self, words: &[&str]) -> i32 {
        self.call(words).output().unwrap().status.code().unwrap()
    }
}

#[test]
fn the_cron_job_runs_and_its_policy_knows_the_codes() {
    require!(has("python3"));
    let Some(all) = manifests() else { return };
    let job = &all[0]["spec"]["jobTemplate"]["spec"];
    let rules = job["podFailurePolicy"]["rules"].as_array().unwrap();
    let fails: Vec<i64> = rules
        .iter()
        .flat_map(|rule| rule["onExitCodes"]["values"].as_array().unwrap())
        .map(|code| code.as_i64().unwrap())
        .collect();
    assert!(rules.iter().all(|rule| rule["action"] == "FailJob"), "{rules:?}");
    assert!(job["backoffLimit"].as_u64().unwrap() > 0 && job["template"]["spec"]["restartPolicy"] == "Never");
    let script = "echo \"${PGPASSWORD-none}\" > started; [ ! -e wait ] || exec sleep 1000; exit 7";
    let pod = Pod::new(&job["template"]["spec"], script);
    assert_eq!(pod.start().wait().unwrap().code(), Some(7), "the status of the job");
    let seen = std::fs::read_to_string(pod.home.path().join("started")).unwrap();
    assert_eq!(seen, "none\n", "the job sees the password");

    std::fs::remove_file(pod.home.path().join("started")).unwrap();
    crate::home::write(&pod.home.path().join("wait"), "");
    let mut held = pod.start();
    // The same command line with less patience.
    let name = pod.words.iter().position(|word| word == "nightly").unwrap();
    let impatient = ["run", "--timeout", "0", &pod.words[name], "true"];
    for (words, wanted, is_final) in
        [(&impatient[..], 75, true), (&["run", "--timeout", "soon", "nightly"][..], 64, true)]
    {
        assert_eq!(pod.code(words), wanted);
        assert_eq!(fails.contains(&i64::from(wanted)), is_final, "{wanted}");
    }
    assert_eq!(pod.code(&["unlock", "--force", "nightly"]), 0);
    assert_eq!(held.wait().unwrap().code(), Some(85));
    assert!(!fails.contains(&85), "a retry is counted");
}

#[test]
fn a_pod_that_is_stopped_releases_its_lock_within_the_grace_period() {
    require!(has("python3"));
    let Some(all) = manifests() else { return };
    let pod_spec = &all[1]["spec"]["template"]["spec"];
    let pod = Pod::new(pod_spec, "trap 'exit 0' TERM; : > started; while :; do sleep 0.1; done");
    let mut leader = pod.start();
    assert_eq!(pod.code(&["status", "-q", "leader"]), 0, "it is held");
    // The kubelet runs the hook, and then sends TERM to the first process.
    let hook = words(&pod_spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(hook[0], "sleep", "{hook:?}");
    let grace = pod_spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(hook[1].parse::<u64>().unwrap() + 10 < grace, "the release has no time left");
    kill(Pid::from_raw(leader.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(leader.wait().unwrap().code(), Some(0));
    assert_eq!(pod.code(&["run", "-n", "leader", "true"]), 0, "it was released");
    // csalock refuses a file that every user can read.
    assert_eq!(pod_spec["volumes"][0]["secret"]["defaultMode"], 0o440);
}
