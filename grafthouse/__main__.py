from grafthouse.cli import main

main()
