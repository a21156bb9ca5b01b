from commitfs.cli import main

main()
