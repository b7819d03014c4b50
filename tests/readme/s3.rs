//! The block for S3, with a server of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use crate::blocks::is_for_s3;
use crate::home::Home;
use crate::page::blocks;

struct Server(Child);

impl Server {
    fn start(port: u16) -> Server {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "moto_server", "-H", "127.0.0.1", "-p", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Server(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_late_writer_does_not_replace_the_object() {
    // No distribution has moto, so it may be absent in CI too.
    let is_there = Command::new("moto_server").arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return harness::skip("a server of S3", "no moto_server (pip install 'moto[server]')");
    }
    require!(harness::has("curl"));
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut server = Server::start(port);
    let all = blocks("sh");
    let block = all.iter().find(|block| is_for_s3(block)).unwrap();
    for shell in ["dash", "bash"] {
        let home = Home::new();
        let settings = format!("export S3_KEY=key:secret S3_BUCKET=http://127.0.0.1:{port}/{shell}\n");
        let create = format!("{settings}curl -sf -X PUT \"$S3_BUCKET\"");
        while !home.run("sh", &[], &create).status.success() {
            assert!(server.0.try_wait().unwrap().is_none(), "the server has ended");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let printed = home.script(shell, &format!("{settings}{}", block.text));
        assert_eq!(printed, "refused\nthe second\n", "{shell}");
        // Another writer comes between the read and the write of each.
        let other =
            "printf '1\\nother %s' $$ > \"$work/other\"; s3 -T \"$work/other\" \"$S3_BUCKET/report\"\n    s3 -T";
        let text = block.text.replacen("s3 -T", other, 1).replace("grep second", "sed 's/[0-9]*$//'");
        let done = home.run(shell, &[], &format!("{settings}{text}"));
        assert_eq!(String::from_utf8_lossy(&done.stdout), "refused\n\nother ", "{shell}: {done:?}");
    }
}
