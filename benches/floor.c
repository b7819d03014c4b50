/* The least that a program can do that runs a command and waits for its end: the floor of every lock tool. With `-l FILE`
 * it holds flock(2) on a file meanwhile. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int status = 0;
    if (argc > 3 && argv[1][0] == '-') {
        int file = open(argv[2], O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
        if (file < 0 || flock(file, LOCK_EX))
            return 126;
        argv += 2;
    }
    pid_t child = argc > 1 ? vfork() : -1;
    if (child == 0) {
        execv(argv[1], argv + 1);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
